"""What the settings say of the life and death of workers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.sections.section import Section


class SupervisionSettings(Section):
    """When a worker counts as lost, and how it is started again and stopped."""

    handshake_s: Annotated[
        float, Field(gt=0, le=600, description="From the start of a process to its answer, in seconds. Default: 30.")
    ] = 30.0
    heartbeat_s: Annotated[
        float, Field(ge=0.02, le=60, description="How often a worker reports, in seconds. Default: 1.")
    ] = 1.0
    suspect_after: Annotated[
        int, Field(ge=1, le=1000, description="Missed reports until it gets no new work. Default: 3.")
    ] = 3
    lost_after: Annotated[
        int, Field(ge=1, le=1000, description="Missed reports until it is given up. Default: 10.")
    ] = 10
    load_stall_s: Annotated[
        float, Field(gt=0, le=3600, description="How long a load may stand still, in seconds. Default: 30.")
    ] = 30.0
    compute_stall_s: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="How long a step may stand still, in seconds; 0.25 a token more. Default: 60.",
        ),
    ] = 60.0
    back_off_first_s: Annotated[
        float, Field(gt=0, le=3600, description="The pause after the first crash, in seconds. Default: 0.5.")
    ] = 0.5
    back_off_limit_s: Annotated[
        float, Field(gt=0, le=3600, description="The longest pause, in seconds. Default: 30.")
    ] = 30.0
    crash_budget: Annotated[
        int, Field(ge=1, le=1000, description="Crashes within the window until a model is FAILED. Default: 5.")
    ] = 5
    crash_window_s: Annotated[
        float, Field(gt=0, le=86_400, description="The window of the budget, in seconds. Default: 600.")
    ] = 600.0
    stop_grace_s: Annotated[
        float, Field(ge=0, le=3600, description="From Shutdown's end to SIGTERM, in seconds. Default: 5.")
    ] = 5.0
    term_s: Annotated[
        float, Field(ge=0, le=3600, description="From SIGTERM to the next step, in seconds. Default: 10.")
    ] = 10.0
    dump_s: Annotated[
        float, Field(ge=0, le=3600, description="From the stack dump to SIGKILL, in seconds. Default: 5.")
    ] = 5.0
