"""What a cache needs of the place where one layer keeps what it knows of one sequence.

    LayerStore          what any layer's memory can do: be shared by blocks, started from them, cut back, emptied
    ├── Store           keys and values: what `models.layers.row_cache` attends over
    │   ├── FullStore   all of them, as they come
    │   ├── WindowStore the last ones, as they come
    │   └── CodedStore  all of them, packed by a codec (affine or TurboQuant)
    └── StateStore      a recurrent layer's state

A block is 32 tokens (`models.blocks.BLOCK_TOKENS`). Nothing here waits for the device. What a store returns for a token
depends on that token's keys and values and its position alone, never on how the tokens were cut into steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from models.errors import ModelError

# Copies of the arrays that one block needs to be put back.
Block = tuple[mx.array, ...]


class StoreError(ModelError):
    """Raised when a store is asked for what it does not hold, or is given blocks that are not its own kind's.

    Attributes:
        problem: one clause in plain words.
    """

    def __init__(self, problem: str) -> None:
        """Keep the fact."""
        self.problem = problem
        super().__init__(problem)


class LayerStore(Protocol):
    """What one layer keeps of one sequence."""

    @property
    def length(self) -> int:
        """Tokens seen, those of an open step among them."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        ...

    @property
    def can_trim(self) -> bool:
        """Whether it can forget tokens of the last update."""
        ...

    def trim(self, num_tokens: int) -> None:
        """Drop the last tokens; only such as the last update added.

        Raises:
            StoreError: more than the last update added and are not dropped yet, or a store that cannot go back.
        """
        ...

    def arrays(self) -> list[mx.array]:
        """Return the arrays to evaluate so that everything added is computed."""
        ...

    def needed(self, num_blocks: int) -> range:
        """Return the numbers of the blocks that `adopt` must be given to start with `num_blocks` blocks."""
        ...

    def extract(self, block: int) -> Block | None:
        """Return copies of what block number `block` needs to be put back; None where it is held no longer.

        The copies are not computed yet; until they are, the next update has to copy the whole store.

        Raises:
            StoreError: the block is not full.
        """
        ...

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """Start with the first `num_blocks` blocks of a sequence.

        Args:
            num_blocks: how many.
            blocks: what `extract` returned for each, in order; None is fine for those that are not `needed`.

        Raises:
            StoreError: the store is not empty, a block is missing, or its arrays have other shapes or dtypes.
        """
        ...

    def clear(self) -> None:
        """Become empty and give the memory back."""
        ...


class Store(LayerStore, Protocol):
    """Keys and values of one layer and sequence."""

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add tokens, and return everything that they may look at.

        Args:
            keys: [1, H_kv, T, D], positions applied.
            values: [1, H_kv, T, D].

        Returns:
            Keys and values in the compute dtype, each [1, H_kv, L, D]; the last T are the new ones. They are to be
            used before the next update.
        """
        ...
