"""Sizes as people write them, in settings and on the command line: bytes, or as in 800M, 1.5G and 2GiB."""

from __future__ import annotations

import re

FORMS = "bytes, or as in 800M, 1.5G, 2GiB"
_SIZE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*(?:([kKMGT])(i)?)?B?", re.ASCII)
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def byte_size(text: str) -> int:
    """Return a size in bytes; `k`, `M`, `G` and `T` count thousands, with an `i` behind them 1024s.

    Raises:
        ValueError: the text is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        msg = f"{text} is no size, such as 800M, 1.5G or 2GiB"
        raise ValueError(msg)
    number, unit, is_binary = found.groups()
    return round(float(number) * (1024 if is_binary else 1000) ** _POWERS.get(unit or "", 0))


def size_or_count(value: object) -> object:
    """Return a text as its size, and anything else as it is, for a check of its own."""
    return byte_size(value) if isinstance(value, str) else value
