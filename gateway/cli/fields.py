"""What options give, checked as far as a field of a request can hold it; whether it makes sense is for the server."""

import json
from pathlib import Path
from typing import Any

from gateway.cli.failures import UsageError

INT32_MAX, UINT32_MAX, UINT64_MAX = 2**31 - 1, 2**32 - 1, 2**64 - 1


def checked(option: str, value: int, most: int = UINT32_MAX) -> int:
    """Return `value` where its field can hold it.

    Raises:
        UsageError: it is below 0 or above `most`.
    """
    if not 0 <= value <= most:
        raise UsageError(f"{option}: not within 0 to {most}")
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
