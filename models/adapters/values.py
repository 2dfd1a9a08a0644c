"""Reading one checked value of an adapter's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from models.adapters.errors import AdapterRejected

MAX_RANK = 1 << 16


def read_number(section: Mapping[str, Any], key: str, file: str, *, default: float) -> float:
    """Return a finite number other than 0, by which nothing would be added; `default` where it is absent or null.

    Raises:
        AdapterRejected: it is anything else.
    """
    value = section.get(key)
    if value is None:
        return default
    number = _as_float(value) if type(value) in (int, float) else 0.0
    if not math.isfinite(number) or number == 0:
        raise AdapterRejected("is no finite number other than 0", file=file, key=key)
    return number


def read_rank(section: Mapping[str, Any], key: str, file: str) -> int | None:
    """Return a rank, at least 1; None where it is absent or null.

    Raises:
        AdapterRejected: it is anything else.
    """
    value = section.get(key)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise AdapterRejected(f"is no rank from 1 to {MAX_RANK}", file=file, key=key)
    return value


def read_flag(section: Mapping[str, Any], key: str, file: str) -> bool:
    """Return true or false; false where it is absent or null.

    Raises:
        AdapterRejected: it is anything else.
    """
    value = section.get(key)
    if value is not None and not isinstance(value, bool):
        raise AdapterRejected("is neither true nor false", file=file, key=key)
    return bool(value)


def read_section(keys: Mapping[str, Any], key: str, file: str) -> Mapping[str, Any] | None:
    """Return an object; None where it is absent or null.

    Raises:
        AdapterRejected: it is anything else.
    """
    value = keys.get(key)
    if value is not None and not isinstance(value, dict):
        raise AdapterRejected("is no object", file=file, key=key)
    return cast("Mapping[str, Any] | None", value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
