"""What the settings say of requests: how many, and how long."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.sections.section import MIB, Bytes, Section


class LimitSettings(Section):
    """How many requests are taken, and how long each may last."""

    max_requests: Annotated[
        int, Field(ge=1, le=100_000, description="Requests in flight in the whole server. Default: 256.")
    ] = 256
    max_requests_per_model: Annotated[
        int, Field(ge=1, le=100_000, description="Requests in flight of one model. Default: 64.")
    ] = 64
    max_waiting: Annotated[
        int, Field(ge=0, le=100_000, description="Requests that wait for one of those places. Default: 64.")
    ] = 64
    max_wait_s: Annotated[
        float, Field(ge=0, le=3600, description="How long a request waits for a place, in seconds. Default: 30.")
    ] = 30.0
    max_request_s: Annotated[
        float, Field(ge=1, le=86_400, description="How long a request may last, in seconds. Default: 3600.")
    ] = 3600.0
    first_message_s: Annotated[
        float, Field(gt=0, le=3600, description="How long a client may send nothing at first, in seconds. Default: 30.")
    ] = 30.0
    slow_reader_s: Annotated[
        float,
        Field(gt=0, le=3600, description="How long a client may take nothing of its answer, in seconds. Default: 60."),
    ] = 60.0
    max_held_bytes: Annotated[
        Bytes,
        Field(
            ge=1024,
            le=1024 * 1024 * MIB,
            description="Requests that wait or whose answer has not begun, in bytes. Default: 256 MiB.",
        ),
    ] = 256 * MIB
    queue_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Of the places in which requests wait, and of their bytes, the most that one caller with a"
            " token may take. Default: 0.5.",
        ),
    ] = 0.5
    drain_notice_s: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description="How long a stopping server still takes requests once its health says NOT_SERVING, in seconds;"
            " none where nobody looks at its health. Default: 5.",
        ),
    ] = 5.0
    drain_grace_s: Annotated[
        float,
        Field(ge=0, le=86_400, description="How long a stop waits for running requests, in seconds. Default: 30."),
    ] = 30.0
    short_grace_s: Annotated[
        float, Field(ge=0, le=86_400, description="What a second stop signal cuts that to, in seconds. Default: 1.")
    ] = 1.0
    unload_grace_s: Annotated[
        float, Field(ge=0, le=86_400, description="How long UnloadModel waits for requests, in seconds. Default: 30.")
    ] = 30.0
    describe_s: Annotated[
        float,
        Field(gt=0, le=600, description="How long reading a checkpoint's headers may take, in seconds. Default: 30."),
    ] = 30.0
