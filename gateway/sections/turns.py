"""What the settings say of turns on a device that workers share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.sections.section import Section


class TurnSettings(Section):
    """Turns of workers that share a GPU."""

    gpu_turns: Annotated[
        Literal["auto", "on", "off"],
        Field(
            description="Whether workers take turns on the device: `auto` where they compute on a GPU, `on` everywhere,"
            " `off` nowhere. Default: auto."
        ),
    ] = "auto"
    burst_s: Annotated[
        float,
        Field(ge=0.001, le=1, description="How long a turn lasts while others wait, in seconds. Default: 0.02."),
    ] = 0.02
    hold_s: Annotated[
        float,
        Field(
            ge=0.1,
            le=3600,
            description="How long a worker may keep a turn that others wait for before it is ended, in seconds; as much"
            " longer as a step that it declares. Default: 10.",
        ),
    ] = 10.0
