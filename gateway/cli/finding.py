"""What a check of this machine found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `value` says what was found, `advice` what to do where something can be done."""

    check: str
    state: Literal["ok", "warn", "fail"]
    value: str
    advice: str = ""
