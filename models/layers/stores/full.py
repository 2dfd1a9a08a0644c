"""All keys and values of a layer, as they come."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.buffers import Buffers, Column, Length
from models.layers.stores.store import Block


class FullStore:
    """Keys and values [1, H_kv, capacity, D] that grow in steps of 256 tokens, in place."""

    can_trim = True

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: mx.Dtype) -> None:
        self._buffers = Buffers(num_kv_heads, [Column(head_dim, dtype)] * 2)
        self._length = Length()

    @property
    def length(self) -> int:
        """Tokens it holds."""
        return self._length.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self._buffers.nbytes

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """See `Store.update`; L is the length."""
        self._buffers.write(self.length, (keys, values))
        self._length.add(keys.shape[2])
        return self.read()

    def read(self) -> tuple[mx.array, mx.array]:
        """Return all keys and values, [1, H_kv, L, D]; there must be some."""
        keys, values = self._buffers.read(0, self.length)
        return keys, values

    def trim(self, num_tokens: int) -> None:
        """See `LayerStore.trim`."""
        self._length.trim(num_tokens)

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return self._buffers.arrays()

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: every block."""
        return range(num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: keys and values, each [1, H_kv, 32, D]."""
        self._length.check_block(block)
        return self._buffers.copy(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`."""
        self._length.check_start(num_blocks, blocks)
        self._buffers.fill(self._buffers.checked(blocks))
        self._length.start(num_blocks)

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self._length.clear()
        self._buffers.clear()
