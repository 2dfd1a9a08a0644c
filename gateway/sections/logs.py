"""What the settings say of log lines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.sections.section import Section


class LogSettings(Section):
    """What is logged, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="The least that is logged. Default: info."),
    ] = "info"
    format: Annotated[
        Literal["json", "console"], Field(description="Lines for programs or for people. Default: console.")
    ] = "console"
    kept_lines: Annotated[
        int, Field(ge=1, le=100_000, description="Past lines that StreamLogs can give. Default: 1000.")
    ] = 1000
