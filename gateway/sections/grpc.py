"""What the settings say of messages and connections."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.sections.section import MIB, Bytes, Section


class GrpcSettings(Section):
    """What clients may send, and how connections are kept."""

    max_request_bytes: Annotated[
        Bytes, Field(ge=1024, le=1024 * MIB, description="Largest message from a client, in bytes. Default: 16 MiB.")
    ] = 16 * MIB
    max_response_bytes: Annotated[
        Bytes, Field(ge=1024, le=1024 * MIB, description="Largest message to a client, in bytes. Default: 16 MiB.")
    ] = 16 * MIB
    max_metadata_bytes: Annotated[
        Bytes, Field(ge=1024, le=MIB, description="Largest metadata of a request, in bytes. Default: 16 KiB.")
    ] = 16 * 1024
    max_concurrent_streams: Annotated[
        int, Field(ge=1, le=100_000, description="Open RPCs of one connection. Default: 256.")
    ] = 256
    min_ping_interval_s: Annotated[
        float, Field(ge=1, le=3600, description="Clients that ping more often are cut off, in seconds. Default: 20.")
    ] = 20.0
    keepalive_s: Annotated[
        float, Field(ge=1, le=86_400, description="How often a quiet connection is pinged, in seconds. Default: 60.")
    ] = 60.0
    keepalive_timeout_s: Annotated[
        float, Field(ge=1, le=3600, description="How long a ping may stay unanswered, in seconds. Default: 20.")
    ] = 20.0
