"""The last keys and values of a layer that sees no further back than a window.

Source: Beltagy et al. 2020, arXiv:2004.05150 (sliding window attention).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.buffers import GROWTH_TOKENS, Buffers, Column, Length
from models.layers.stores.store import Block


class WindowStore:
    """Keys and values in the order of their positions; the front is dropped where the window has left it behind.

    A token sees itself and the `window - 1` tokens before it, so an update returns `window - 1` old tokens at most.
    What stays held is a little more: whole blocks, and as many as are needed to adopt up to the last full one.

    Where the window turns, a token that comes alone gets its keys and values as a ring holds them that is W long and is
    written round and round: mlx-lm's order, and so its sums, bit for bit.

    Attributes:
        window: W, at least 1.
        first: position of the first token that the last update returned.
    """

    can_trim = True

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: mx.Dtype, window: int, *, turns: bool = False) -> None:
        self.window = window
        self.first = 0
        self._turns = turns
        self._origin = 0  # position that stands at the start of the ring
        self._buffers = Buffers(num_kv_heads, [Column(head_dim, dtype)] * 2)
        self._length = Length()
        self._base = 0  # position of the buffers' first row; a multiple of 32

    @property
    def length(self) -> int:
        """Tokens seen, held or not."""
        return self._length.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self._buffers.nbytes

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """See `Store.update`; L is T and what the window holds of the tokens before: up to W - 1."""
        start, num_tokens = self.length, keys.shape[2]
        self._make_room(num_tokens)
        self._buffers.write(start - self._base, (keys, values))
        self._length.add(num_tokens)
        self.first = max(0, start - (self.window - 1))
        keys, values = self._buffers.read(self.first - self._base, self.length - self._base)
        if self._turns and num_tokens == 1:
            return self._turned(keys), self._turned(values)
        # A ring begins anew with the last tokens of a chunk.
        self._origin = max(0, self.length - self.window) if self.length - self.first > self.window else 0
        return keys, values

    def trim(self, num_tokens: int) -> None:
        """See `LayerStore.trim`; the window before the dropped tokens is still whole."""
        self._length.trim(num_tokens)

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return self._buffers.arrays()

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: those that the next token sees into."""
        return range(self._first_block(num_blocks), num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: keys and values, each [1, H_kv, 32, D]."""
        self._length.check_block(block)
        start = block * BLOCK_TOKENS - self._base
        return self._buffers.copy(start, start + BLOCK_TOKENS) if start >= 0 else None

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`."""
        self._length.check_start(num_blocks, blocks)
        first = self._first_block(num_blocks)
        self._buffers.fill(self._buffers.checked(blocks[first:]))
        self._base = first * BLOCK_TOKENS
        self._length.start(num_blocks)

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self._length.clear()
        self._buffers.clear()
        self._base = self.first = self._origin = 0

    def _turned(self, x: mx.array) -> mx.array:
        """Return what is in the order of positions [1, H_kv, W, D] in that of the ring."""
        turn = (self.first - self._origin) % self.window
        if x.shape[2] < self.window or turn == 0:
            return x
        return mx.concatenate([x[:, :, self.window - turn :], x[:, :, : self.window - turn]], axis=2)

    def _first_block(self, num_blocks: int) -> int:
        """Return the number of the first block that is seen from the token after `num_blocks` blocks."""
        return max(0, num_blocks * BLOCK_TOKENS - (self.window - 1)) // BLOCK_TOKENS

    def _make_room(self, num_tokens: int) -> None:
        """Where the buffers are full, drop what no later token sees rather than grow."""
        end = self.length - self._base
        kept_from = self._first_block(self.length // BLOCK_TOKENS) * BLOCK_TOKENS
        if end + num_tokens <= self._buffers.capacity or kept_from == self._base:
            return
        kept = self._buffers.read(kept_from - self._base, end)
        self._buffers.clear()
        # A step's worth of tokens to spare, so that tokens that come one by one do not move the window each time.
        self._buffers.grow(end - (kept_from - self._base) + num_tokens + GROWTH_TOKENS)
        if kept[0].shape[2]:
            self._buffers.write(0, kept)
        self._base = kept_from
