"""Which blocks of a cache are in use, and by how many: plain accounting without a tensor.

A block holds the keys and values of 32 consecutive tokens of one sequence. Sequences that begin alike share blocks, so
each counts its holders. Room can be promised before it is taken: a promise is what lets a sequence that has begun run
to its end whatever others do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from models.errors import BlocksExhausted, BlockUnheld

BLOCK_TOKENS = 32
# A step adds so many tokens to a sequence at most: where layers see a window, there is room for it and for this.
MAX_STEP_TOKENS = 2048


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class Part(Protocol):
    """A share of what one block of a sequence holds in all layers."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps from being free."""
        ...

    def drop(self) -> None:
        """Give it back; the last use of it."""
        ...


@dataclass(slots=True)
class BlockPool:
    """A fixed number of blocks, each free or held.

    Attributes:
        num_blocks: of all.
        num_promised: free blocks that are spoken for.
    """

    num_blocks: int
    num_promised: int = 0
    _free: list[int] = field(init=False)
    _holders: dict[int, int] = field(init=False, default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._free = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, promised ones among them."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def is_held(self, block: int) -> bool:
        """Return whether somebody holds a block."""
        return block in self._holders

    def promise(self, num_blocks: int) -> bool:
        """Promise so many blocks, or none and return False."""
        if self.num_promised + num_blocks > self.num_free:
            return False
        self.num_promised += num_blocks
        return True

    def forget(self, num_blocks: int) -> None:
        """Take a promise of so many blocks back."""
        self.num_promised -= num_blocks

    def take(self, *, is_promised: bool = False) -> int:
        """Return a free block, held once; the one that was given back last comes first.

        Args:
            is_promised: whether it fulfils a promise.

        Raises:
            BlocksExhausted: none is free, or all are promised to others.
        """
        if self.num_free <= (0 if is_promised else self.num_promised):
            raise BlocksExhausted(self.num_blocks)
        if is_promised:
            self.num_promised -= 1
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block.

        Raises:
            BlockUnheld: nobody holds it.
        """
        if block not in self._holders:
            raise BlockUnheld(block)
        self._holders[block] += 1

    def give_back(self, block: int) -> bool:
        """Take a holder from a block; return whether it is free now.

        Raises:
            BlockUnheld: nobody holds it.
        """
        if block not in self._holders:
            raise BlockUnheld(block)
        self._holders[block] -= 1
        if self._holders[block]:
            return False
        del self._holders[block]
        self._free.append(block)
        return True
