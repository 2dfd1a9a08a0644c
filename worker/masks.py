"""Which tokens may come next, a bit for each."""

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32
ALL_ALLOWED = 0xFFFFFFFF

# uint32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set where token i may come.
Mask = NDArray[np.uint32]


def packed(allowed: NDArray[np.bool_]) -> Mask:
    """Return flags, bool [V], as bits."""
    padded = np.zeros(-(-allowed.size // WORD_BITS) * WORD_BITS, dtype=bool)
    padded[: allowed.size] = allowed
    return np.packbits(padded, bitorder="little").view("<u4")


def stacked(masks: list[Mask | None], width: int) -> Mask:
    """Return the masks of several rows of `width` tokens, uint32 [M, ceil(width / 32)].

    Where there is none every token may come, and none behind the end of one that is shorter.
    """
    words = np.full((len(masks), -(-width // WORD_BITS)), ALL_ALLOWED, np.uint32)
    for row, mask in zip(words, masks, strict=True):
        if mask is not None:
            row[: len(mask)] = mask[: len(row)]
            row[len(mask) :] = 0
    return words
