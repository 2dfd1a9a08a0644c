"""What the settings say of traces."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.sections.section import Section

SCHEMES = ("http://", "https://")


class TracingSettings(Section):
    """Where spans go."""

    endpoint: Annotated[
        str,
        Field(
            description="`http://HOST:PORT` or `https://HOST:PORT` of a collector that takes OTLP over gRPC; needs"
            " `pip install 'pomona[tracing]'`. Empty: no spans are written. Default: empty."
        ),
    ] = ""
    sample_ratio: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="The share of traces that is written, of those that begin here; of others their caller decides."
            " Default: 1.",
        ),
    ] = 1.0
    service_name: Annotated[
        str, Field(min_length=1, max_length=200, description="What the spans' service is called. Default: pomona.")
    ] = "pomona"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.endpoint and not self.endpoint.startswith(SCHEMES):
            raise ValueError("endpoint: it begins with http:// or https://")
        return self
