"""What a layer of mlx-lm keeps of one sequence, as a store of ours.

Keys and values that lie one behind the other can be cut back, and shared by blocks. Of any other cache nothing is
known but that its model can use it: it is neither cut nor shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.buffers import Length
from models.layers.stores.store import Block, StoreError

# A cache of mlx-lm's, one of a list that a model makes.
LayerCache = Any


class BorrowedStore:
    """A cache of which nothing is known.

    Args:
        make: returns an empty cache of the layer.

    Attributes:
        cache: what the model is given.
    """

    can_trim = False

    def __init__(self, make: Callable[[], LayerCache]) -> None:
        self._make = make
        self._num_tokens = 0
        self.cache: LayerCache = make()

    @property
    def length(self) -> int:
        """Tokens seen."""
        return self._num_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays())

    def add(self, num_tokens: int) -> None:
        """Count tokens that the model has put in."""
        self._num_tokens += num_tokens

    def trim(self, num_tokens: int) -> None:
        """Refuse to go back; raises `StoreError` where there is something to drop."""
        if num_tokens:
            raise StoreError("a cache of mlx-lm that is more than keys and values cannot go back")

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return list(arrays_within(self.cache.state)) if self._num_tokens else []

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: every block, and there is none."""
        return range(num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: nothing can be put back."""
        if not 0 <= block < self._num_tokens // BLOCK_TOKENS:
            raise StoreError(f"block {block} is not full: there are {self._num_tokens} tokens")
        return None

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`: it can start with none."""
        if num_blocks or blocks:
            raise StoreError("a cache of mlx-lm that is more than keys and values cannot start behind blocks")

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self.cache = self._make()
        self._num_tokens = 0


class BorrowedKeysStore:
    """mlx-lm's `KVCache`: keys and values [1, H_kv, capacity, D] each, with the tokens in their order.

    Args:
        make: returns an empty one.

    Attributes:
        cache: what the model is given.
    """

    can_trim = True

    def __init__(self, make: Callable[[], LayerCache]) -> None:
        self._make = make
        self._length = Length()
        self.cache: LayerCache = make()

    @property
    def length(self) -> int:
        """Tokens it holds."""
        return self._length.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays())

    def add(self, num_tokens: int) -> None:
        """Count tokens that the model has put in."""
        self._length.add(num_tokens)

    def trim(self, num_tokens: int) -> None:
        """See `LayerStore.trim`."""
        self._length.trim(num_tokens)
        self.cache.trim(num_tokens)

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return [] if self.cache.keys is None else [self.cache.keys, self.cache.values]

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: every block."""
        return range(num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: keys and values, each [1, H_kv, 32, D]."""
        self._length.check_block(block)
        tokens = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        return tuple(mx.contiguous(array[:, :, tokens]) for array in self.arrays())

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`."""
        self._length.check_start(num_blocks, blocks)
        held = [block for block in blocks if block is not None and len(block) == 2]
        if len(held) != num_blocks:
            raise StoreError("a block is missing or of another kind of store")
        if held:
            keys, values = (mx.concatenate(list(column), axis=2) for column in zip(*held, strict=True))
            self.cache.keys, self.cache.values = keys, values
            self.cache.offset = num_blocks * BLOCK_TOKENS
        self._length.start(num_blocks)

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self.cache = self._make()
        self._length.clear()


def arrays_within(state: object) -> Iterator[mx.array]:
    """Yield every array of a state: of lists within lists, mappings and other caches."""
    if isinstance(state, mx.array):
        yield state
    elif isinstance(state, list | tuple):
        for each in cast("Sequence[object]", state):
            yield from arrays_within(each)
    elif isinstance(state, dict):
        yield from arrays_within(list(cast("dict[object, object]", state).values()))
