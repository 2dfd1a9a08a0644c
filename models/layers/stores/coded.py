"""All keys and values of a layer, packed by a codec.

A token is packed once, when it comes, and attention always reads what unpacking gives, for new tokens as for old ones:
so its numbers do not depend on how the tokens were cut into steps. The same reason makes `start` a matter of position
alone: the tokens before it stay as they came for good, and those from it on are packed. (Converting a store once it
holds `start` tokens would let the end of a step decide which of its tokens saw plain keys.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.buffers import Buffers, Column, Length
from models.layers.stores.full import FullStore
from models.layers.stores.store import Block


class Codec(Protocol):
    """Packs keys and values token by token; one serves every sequence of a model."""

    @property
    def columns(self) -> Sequence[Column]:
        """The arrays that it packs a token into."""
        ...

    def encode(self, keys: mx.array, values: mx.array) -> Sequence[mx.array]:
        """Pack [1, H_kv, T, D] each into arrays [1, H_kv, T, width], one a column."""
        ...

    def decode(self, coded: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Unpack into keys and values, [1, H_kv, T, D] each, in the compute dtype."""
        ...


class CodedStore:
    """Keys and values, plain before position `start` and packed from there on."""

    can_trim = True

    def __init__(self, codec: Codec, plain: FullStore, num_kv_heads: int, start: int = 0) -> None:
        """Make an empty store.

        Args:
            codec: packs and unpacks.
            plain: an empty store for the tokens before `start`.
            num_kv_heads: H_kv.
            start: position of the first packed token, a multiple of 32.
        """
        self._codec = codec
        self._plain = plain
        self._start = start
        self._buffers = Buffers(num_kv_heads, codec.columns)
        self._length = Length()

    @property
    def length(self) -> int:
        """Tokens it holds."""
        return self._length.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self._plain.nbytes + self._buffers.nbytes

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """See `Store.update`; L is the length."""
        num_tokens = keys.shape[2]
        num_plain = min(num_tokens, max(0, self._start - self.length))
        if num_plain:
            self._plain.update(keys[:, :, :num_plain], values[:, :, :num_plain])
        if num_plain < num_tokens:
            coded = self._codec.encode(keys[:, :, num_plain:], values[:, :, num_plain:])
            self._buffers.write(self.length + num_plain - self._start, coded)
        self._length.add(num_tokens)
        return self._read()

    def trim(self, num_tokens: int) -> None:
        """See `LayerStore.trim`."""
        self._length.trim(num_tokens)
        if self._plain.length > self.length:
            self._plain.trim(self._plain.length - self.length)

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return [*self._plain.arrays(), *self._buffers.arrays()]

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: every block."""
        return range(num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: the packed arrays, or plain keys and values before `start`."""
        self._length.check_block(block)
        first = block * BLOCK_TOKENS - self._start
        if first < 0:
            return self._plain.extract(block)
        return self._buffers.copy(first, first + BLOCK_TOKENS)

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`."""
        self._length.check_start(num_blocks, blocks)
        num_plain = min(num_blocks, self._start // BLOCK_TOKENS)
        coded = self._buffers.checked(blocks[num_plain:])
        self._plain.adopt(num_plain, blocks[:num_plain])
        self._buffers.fill(coded)
        self._length.start(num_blocks)

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self._length.clear()
        self._plain.clear()
        self._buffers.clear()

    def _read(self) -> tuple[mx.array, mx.array]:
        if self.length <= self._start:
            return self._plain.read()
        keys, values = self._codec.decode(self._buffers.read(0, self.length - self._start))
        if not self._start:
            return keys, values
        plain_keys, plain_values = self._plain.read()
        return mx.concatenate([plain_keys, keys], axis=2), mx.concatenate([plain_values, values], axis=2)
