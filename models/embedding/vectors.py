"""From hidden states of tokens to the vectors that a caller wants, in plain NumPy.

What comes of an input depends on its own hidden states alone, in their order, and not on the chunks in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.pooling import PoolingMode

Floats = NDArray[np.float32]
# Below it a vector is not scaled any longer. Source: `torch.nn.functional.normalize`.
_MIN_LENGTH = 1e-12


class NotFiniteError(ValueError):
    """Raised when a vector holds what is no number."""


class TooLargeError(ValueError):
    """Raised when a value does not fit into half a float."""


@dataclass(frozen=True, slots=True)
class VectorForm:
    """What a caller wants of a vector.

    Attributes:
        dimensions: its first so many values.
        is_normalized: whether it is scaled to length 1, after the cut.
        dtype: little-endian.
    """

    dimensions: int
    is_normalized: bool
    dtype: Literal["<f4", "<f2"] = "<f4"

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector."""
        return self.dimensions * np.dtype(self.dtype).itemsize

    def shaped(self, vectors: Floats) -> bytes:
        """Return vectors as they are sent.

        Args:
            vectors: float32 [n, E].

        Raises:
            NotFiniteError: the model has computed no numbers.
            TooLargeError: a value is beyond the dtype.
        """
        cut = vectors[:, : self.dimensions].astype(np.float64)
        if not np.isfinite(cut).all():
            raise NotFiniteError
        if self.is_normalized:
            # Each row by itself: a sum over rows together could depend on how many there are.
            lengths = np.array([np.sqrt(np.dot(row, row)) for row in cut])
            cut /= np.maximum(lengths, _MIN_LENGTH)[:, np.newaxis]
        with np.errstate(over="ignore"):
            stored = cut.astype(self.dtype)
        if not np.isfinite(stored).all():
            raise TooLargeError
        return stored.tobytes()


class Pool:
    """Gathers what is needed of one input while its tokens are computed.

    Args:
        mode: how its vectors become one; None: every token keeps its own.
        num_tokens: of the input.
    """

    def __init__(self, mode: PoolingMode | None, num_tokens: int) -> None:
        self._mode = mode
        self._num_tokens = num_tokens
        self._parts: list[Floats] = []
        self._sum: NDArray[np.float64] | None = None

    def needed(self, start: int, count: int) -> tuple[int, ...]:
        """Return which of the tokens from `start` on are needed, numbered within these `count`."""
        match self._mode:
            case PoolingMode.LAST:
                return (count - 1,) if start + count == self._num_tokens else ()
            case PoolingMode.FIRST:
                return (0,) if start == 0 else ()
            case _:
                return tuple(range(count))

    def add(self, hidden: Floats) -> None:
        """Take the hidden states that were needed; float32 [n, E]."""
        if self._mode is not PoolingMode.MEAN:
            if len(hidden):
                self._parts.append(hidden)
            return
        for row in hidden:  # one after the other, so that the sum is the same however the input was cut
            self._sum = row.astype(np.float64) if self._sum is None else self._sum + row

    def vectors(self) -> Floats:
        """Return float32 [n, E], once all tokens were computed: one vector, or one for each token."""
        if self._sum is not None:
            return (self._sum / self._num_tokens).astype(np.float32)[np.newaxis]
        return np.concatenate(self._parts)
