"""Arrays with a row for each token that grow together, written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.store import Block, StoreError

GROWTH_TOKENS = 256


class Column(NamedTuple):
    """What each token and head has in one of the arrays: how many elements of which dtype."""

    width: int
    dtype: mx.Dtype


class Buffers:
    """One array [1, H_kv, capacity, width] for each column; the capacity grows by whole steps of 256 tokens."""

    def __init__(self, num_kv_heads: int, columns: Sequence[Column]) -> None:
        self._num_kv_heads = num_kv_heads
        self._columns = tuple(columns)
        self._arrays: list[mx.array] = []

    @property
    def capacity(self) -> int:
        """How many tokens fit without growing."""
        return self._arrays[0].shape[2] if self._arrays else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._arrays)

    def arrays(self) -> list[mx.array]:
        """Return the arrays themselves."""
        return list(self._arrays)

    def grow(self, num_tokens: int) -> None:
        """Make room for so many tokens in all."""
        missing = num_tokens - self.capacity
        if missing <= 0:
            return
        room = -(-missing // GROWTH_TOKENS) * GROWTH_TOKENS
        empty = [mx.zeros((1, self._num_kv_heads, room, width), dtype) for width, dtype in self._columns]
        if not self._arrays:
            self._arrays = empty
            return
        self._arrays = [mx.concatenate([array, more], axis=2) for array, more in zip(self._arrays, empty, strict=True)]

    def write(self, start: int, rows: Sequence[mx.array]) -> None:
        """Put tokens at `start` and after; each of `rows` is [1, H_kv, T, width]."""
        end = start + rows[0].shape[2]
        self.grow(end)
        for array, new in zip(self._arrays, rows, strict=True):
            # In place where nothing else holds the array: no copy that is asked for, and no step that is computed.
            array[:, :, start:end] = new

    def read(self, start: int, end: int) -> list[mx.array]:
        """Return the tokens from `start` up to `end`, as views of the arrays."""
        if start == 0 and end == self.capacity:
            # Other objects on the same memory: a later write changes what the object here stands for.
            return [array[...] for array in self._arrays]
        return [array[:, :, start:end] for array in self._arrays]

    def copy(self, start: int, end: int) -> Block:
        """Return copies of the tokens from `start` up to `end`, not computed yet."""
        return tuple(mx.contiguous(array) for array in self.read(start, end))

    def checked(self, blocks: Sequence[Block | None]) -> list[Block]:
        """Return the blocks, all there and of these columns.

        Raises:
            StoreError: a block is missing, or its arrays have other shapes or dtypes.
        """
        shapes = [((1, self._num_kv_heads, BLOCK_TOKENS, width), dtype) for width, dtype in self._columns]
        held: list[Block] = []
        for block in blocks:
            if block is None or [(array.shape, array.dtype) for array in block] != shapes:
                raise StoreError("a block is missing or of another kind of store")
            held.append(block)
        return held

    def fill(self, blocks: Sequence[Block]) -> None:
        """Put the tokens of blocks at the start, all at once."""
        if blocks:
            self.write(0, [mx.concatenate(list(column), axis=2) for column in zip(*blocks, strict=True)])

    def clear(self) -> None:
        """Let the arrays go."""
        self._arrays = []


class Length:
    """How many tokens a store holds, and how many of them it can still drop."""

    def __init__(self) -> None:
        self.tokens = 0
        self._droppable = 0

    def add(self, num_tokens: int) -> None:
        """Count the tokens of an update."""
        self.tokens += num_tokens
        self._droppable = num_tokens

    def trim(self, num_tokens: int) -> None:
        """Drop tokens of the last update.

        Raises:
            StoreError: the last update did not leave so many.
        """
        if not 0 <= num_tokens <= self._droppable:
            raise StoreError(f"{num_tokens} tokens are to be dropped, of {self._droppable} that can be")
        self.tokens -= num_tokens
        self._droppable -= num_tokens

    def check_block(self, block: int) -> None:
        """Refuse a block that is not full.

        Raises:
            StoreError: it is not.
        """
        if not 0 <= block < self.tokens // BLOCK_TOKENS:
            raise StoreError(f"block {block} is not full: there are {self.tokens} tokens")

    def check_start(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """Refuse blocks to start with where there is something, or where they are other than announced.

        Raises:
            StoreError: it is not empty, or there are other than `num_blocks`.
        """
        if self.tokens:
            raise StoreError("a store that is not empty cannot adopt")
        if num_blocks != len(blocks):
            raise StoreError(f"{len(blocks)} blocks are given where {num_blocks} are to be adopted")

    def start(self, num_blocks: int) -> None:
        """Count the tokens of the blocks that an empty store starts with."""
        self.tokens = num_blocks * BLOCK_TOKENS
        self._droppable = 0

    def clear(self) -> None:
        """Count from none."""
        self.tokens = self._droppable = 0
