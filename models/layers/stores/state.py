"""What a recurrent layer keeps of one sequence: a state of fixed size, and what it was at the ends of some blocks.

A state cannot go back. What can be reused are the states that were kept on the way, so a layer walks through its tokens
in the pieces that `pieces` names and hands over its state after each. A state may be as large as the keys and values of
a thousand tokens, so few are kept: at every so-many-th end of a block, and at the last ones of a step of several
tokens, behind which others begin who have the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import mlx.core as mx

from models.blocks import BLOCK_TOKENS
from models.layers.stores.store import Block, StoreError


class StateStore:
    """Arrays of any shapes, and what they were at the last few marks.

    Attributes:
        state: after the last token; None before the first.
    """

    can_trim = False

    def __init__(self, mark_blocks: int = 1, num_marks: int = 16) -> None:
        """Make an empty store.

        Args:
            mark_blocks: after so many blocks the end of one is a mark in any case.
            num_marks: how many are kept, the last ones.
        """
        self.state: Block | None = None
        self._mark_tokens = mark_blocks * BLOCK_TOKENS
        self._num_marks = num_marks
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
        """Return the lengths into which to cut the next tokens, so that a state is there at each mark and the end."""
        if num_tokens == 1:
            return [1]
        end = self.length + num_tokens
        places = sorted({self.length, *self._marks(num_tokens), end})
        return [stop - start for start, stop in pairwise(places)]

    def advance(self, states: Sequence[Sequence[mx.array]], num_tokens: int) -> None:
        """Take the states after the next tokens.

        Args:
            states: the arrays after each of `pieces(num_tokens)`; they are kept as they are, so the caller writes to
                them no more.
            num_tokens: of the step.

        Raises:
            StoreError: there are no tokens, or other than as many states as pieces.
        """
        pieces, marks = self.pieces(num_tokens), self._marks(num_tokens)
        if not pieces or len(states) != len(pieces):
            raise StoreError(f"{len(states)} states are given for {len(pieces)} pieces of {num_tokens} tokens")
        for place, state in zip(accumulate(pieces, initial=self.length), (None, *states), strict=True):
            if state is not None and place in marks:
                self._snapshots[place // BLOCK_TOKENS - 1] = tuple(state)
        self.state = tuple(states[-1])
        self._num_tokens += num_tokens
        while len(self._snapshots) > self._num_marks:
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

    def _marks(self, num_tokens: int) -> set[int]:
        """Return the ends of blocks within the next tokens that are kept.

        Of a step of several tokens the last end is, and the one before its last token: of a prompt that is given again,
        one token at least is computed again.
        """
        start, end = self.length, self.length + num_tokens
        marks = set(range((start // self._mark_tokens + 1) * self._mark_tokens, end + 1, self._mark_tokens))
        if num_tokens > 1:
            marks |= {last // BLOCK_TOKENS * BLOCK_TOKENS for last in (end, end - 1)}
        return {mark for mark in marks if mark > start}
