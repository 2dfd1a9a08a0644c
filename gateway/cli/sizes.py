"""Sizes in bytes, as options take them."""

import math

_UNITS = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))
_DIGITS = 3


def size_option(num_bytes: int) -> str:
    """Return a size as an option takes it, rounded up to three digits: 70.7M is enough for 70,647,808 bytes."""
    coarse = 10 ** max(0, len(str(num_bytes)) - _DIGITS)
    rounded = math.ceil(num_bytes / coarse) * coarse
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if rounded >= factor), ("", 1))
    return f"{rounded / factor:g}{unit}"
