"""What options give, checked as far as a field of a request can hold it, or the contract tells."""

import json
from pathlib import Path
from typing import Any, TypeVar

from gateway.cli.failures import UsageError

INT32_MAX, UINT32_MAX, UINT64_MAX = 2**31 - 1, 2**32 - 1, 2**64 - 1
Number = TypeVar("Number", int, float)


def checked(option: str, value: Number, most: float = UINT32_MAX, least: float = 0, *, is_open: bool = False) -> Number:
    """Return `value` where its field can hold it.

    Raises:
        UsageError: it is above `most`, below `least`, or, with `is_open`, `least` itself.
    """
    # Written so that a NaN is outside.
    if not least <= value <= most or (is_open and value == least):
        bounds = f"above {least}, at most {most}" if is_open else f"within {least} to {most}"
        raise UsageError(f"{option}: not {bounds}")
    return value


def is_text(value: str) -> bool:
    """Say whether a message can hold `value`: bytes that are not UTF-8 stand in it as halves of surrogate pairs."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def read_text(option: str, path: Path) -> str:
    """Return the text of a file that an option names.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 at byte {error.start}") from error


def read_json(option: str, path: Path) -> tuple[str, Any]:
    """Return the text of a JSON file that an option names, and what it says.

    Raises:
        UsageError: it cannot be read, or is not JSON; the text has line and column.
    """
    text = read_text(option, path)
    try:
        return text, json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise UsageError(f"{option}: {where}: not JSON: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise UsageError(f"{option}: {path} is nested too deeply") from error
