"""What a check of this machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, in words.

    Attributes:
        state: `warn` where Pomona runs, but slower or with less than it could.
        value: what was found, with its figures.
        advice: what to do about it; empty where there is nothing to do.
    """

    state: Literal["ok", "warn", "fail"]
    value: str
    advice: str = ""
