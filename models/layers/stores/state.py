"""What a recurrent layer keeps of one sequence: a state of fixed size, and what it was at the ends of blocks.

A state cannot go back. What can be reused are the states that were kept on the way, so a layer walks through its tokens
in the pieces that `pieces` names and hands over its state after each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.store import Block, StoreError


class StateStore:
    """Arrays of any shapes, and copies of the last few that fell on the end of a block.

    Attributes:
        state: after the last token; None before the first.
    """

    can_trim = False

    def __init__(self, max_snapshots: int = 16) -> None:
        """Make an empty store.

        Args:
            max_snapshots: how many ends of blocks are kept, the last ones; 16 are those of a chunk of 512 tokens.
        """
        self.state: Block | None = None
        self._max_snapshots = max_snapshots
        self._snapshots: dict[int, Block] = {}  # by block number, ascending
        self._num_tokens = 0

    @property
    def length(self) -> int:
        """Tokens seen."""
        return self._num_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of what is kept beside it; what they share counts once."""
        return sum({id(array): array.nbytes for array in self.arrays()}.values())

    def pieces(self, num_tokens: int) -> list[int]:
        """Return the lengths into which to cut the next tokens, so that a state is there at each end of a block."""
        ends = range(self.length // BLOCK_TOKENS * BLOCK_TOKENS + BLOCK_TOKENS, self.length + num_tokens, BLOCK_TOKENS)
        marks = [self.length, *ends, self.length + num_tokens]
        return [end - start for start, end in pairwise(marks) if end > start]

    def advance(self, state: Sequence[mx.array], num_tokens: int) -> None:
        """Take the state after the next piece.

        Args:
            state: its arrays; they are kept as they are, so the caller writes to them no more.
            num_tokens: tokens of the piece; it does not reach beyond the end of a block.

        Raises:
            StoreError: the piece is empty or reaches too far.
        """
        left = BLOCK_TOKENS - self.length % BLOCK_TOKENS
        if not 0 < num_tokens <= left:
            raise StoreError(f"a piece has {num_tokens} tokens and the block ends after {left}")
        self.state = tuple(state)
        self._num_tokens += num_tokens
        if num_tokens == left:
            self._snapshots[self.length // BLOCK_TOKENS - 1] = self.state
            if len(self._snapshots) > self._max_snapshots:
                del self._snapshots[next(iter(self._snapshots))]

    def trim(self, num_tokens: int) -> None:
        """Refuse to go back.

        Raises:
            StoreError: there is something to drop.
        """
        if num_tokens:
            raise StoreError("a recurrent state cannot go back")

    def arrays(self) -> list[mx.array]:
        """See `LayerStore.arrays`."""
        return [array for state in (self.state, *self._snapshots.values()) for array in state or ()]

    def needed(self, num_blocks: int) -> range:
        """See `LayerStore.needed`: the last."""
        return range(max(0, num_blocks - 1), num_blocks)

    def extract(self, block: int) -> Block | None:
        """See `LayerStore.extract`: the state at the end of the block, which no later token changes."""
        if not 0 <= block < self.length // BLOCK_TOKENS:
            raise StoreError(f"block {block} is not full: there are {self.length} tokens")
        return self._snapshots.get(block)

    def adopt(self, num_blocks: int, blocks: Sequence[Block | None]) -> None:
        """See `LayerStore.adopt`."""
        if self.length:
            raise StoreError("a store that is not empty cannot adopt")
        if num_blocks != len(blocks):
            raise StoreError(f"{len(blocks)} blocks are given where {num_blocks} are to be adopted")
        if not num_blocks:
            return
        state = blocks[-1]
        if state is None:
            raise StoreError("the state at the end of the last block is missing")
        self.state = state
        self._snapshots = {num_blocks - 1: state}
        self._num_tokens = num_blocks * BLOCK_TOKENS

    def clear(self) -> None:
        """See `LayerStore.clear`."""
        self.state = None
        self._snapshots = {}
        self._num_tokens = 0
