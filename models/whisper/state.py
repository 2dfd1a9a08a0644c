"""What the decoder keeps of a window: the speech, seen once by every layer, and the texts that it is writing."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

_STEP_POSITIONS = 64

# Keys and values of the speech in every layer, each [1, C, E].
Memory = Sequence[tuple[mx.array, mx.array]]


class Texts:
    """The texts of one window, all of one length: keys and values of every layer.

    Args:
        memory: the window's speech.
        num_layers: of the decoder.
        num_texts: B.
    """

    def __init__(self, memory: Memory, num_texts: int = 1) -> None:
        self.memory = memory
        self.num_texts = num_texts
        self.length = 0
        # In every layer, [B, room, E] with the first `length` positions in use.
        self._kept: list[tuple[mx.array, mx.array] | None] = [None] * len(memory)

    def extend(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add new positions [B, T, E] to a layer, and return all of them; `advance` follows the last layer."""
        kept = self._kept[layer]
        stop = self.length + keys.shape[1]
        room = 0 if kept is None else kept[0].shape[1]
        if kept is None or stop > room:
            more = -(-(stop - room) // _STEP_POSITIONS) * _STEP_POSITIONS
            empty = mx.zeros((keys.shape[0], more, keys.shape[2]), keys.dtype)
            kept = (empty, empty) if kept is None else tuple(mx.concatenate([old, empty], axis=1) for old in kept)
        filled = [_written(old, new, self.length) for old, new in zip(kept, (keys, values), strict=True)]
        self._kept[layer] = (filled[0], filled[1])
        return filled[0][:, :stop], filled[1][:, :stop]

    def advance(self, num_positions: int) -> None:
        """Count positions that every layer has now."""
        self.length += num_positions

    def keep(self, texts: Sequence[int]) -> None:
        """Go on with these of the texts, in this order; one may come several times."""
        if list(texts) == list(range(self.num_texts)):
            return
        chosen = mx.array(list(texts), dtype=mx.int32)
        self._kept = [
            None if kept is None else (mx.take(kept[0], chosen, axis=0), mx.take(kept[1], chosen, axis=0))
            for kept in self._kept
        ]
        self.num_texts = len(texts)

    def arrays(self) -> list[mx.array]:
        """Return everything that is kept, to have it computed."""
        return [array for kept in self._kept if kept is not None for array in kept]


def _written(kept: mx.array, new: mx.array, start: int) -> mx.array:
    return mx.slice_update(kept, new, mx.array([start]), axes=(1,))
