"""What the settings say of requests whose worker goes away."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.sections.section import Section


class RetrySettings(Section):
    """Which requests are tried again, and which are not any more."""

    lost_requests: Annotated[
        bool,
        Field(
            description="Whether a request goes to the next worker where the first died before it began it."
            " Default: true."
        ),
    ] = True
    quarantine_deaths: Annotated[
        int,
        Field(
            ge=0, le=100, description="A request is refused after so many workers died with it; 0: never. Default: 2."
        ),
    ] = 2
    quarantine_s: Annotated[
        float,
        Field(gt=0, le=86_400, description="For how long after the last of them, in seconds. Default: 600."),
    ] = 600.0
