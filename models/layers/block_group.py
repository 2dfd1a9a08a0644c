"""Layers that are alike: one pool of blocks, and for each sequence a table that says where its tokens lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from models.blocks import BLOCK_TOKENS, MAX_STEP_TOKENS, BlockPool, blocks_for
from models.layers.cache import AttentionLayer
from models.step import StepPlan

NO_BLOCK = -1


def blocks_at_once(layer: AttentionLayer, num_tokens: int) -> int:
    """Return how many blocks a sequence of so many tokens holds at once: a window leaves others behind."""
    if layer.window is None:
        return blocks_for(num_tokens)
    return min(blocks_for(num_tokens), blocks_for(layer.window + MAX_STEP_TOKENS) + 1)


@dataclass(slots=True)
class BlockGroup:
    """One pool, and a table of blocks for each slot.

    Slots hold and are promised no more than `num_row_blocks` together, each counting what it shares, and what is lent
    to sequences that follow among it; the rest of the pool is for parts. So what was promised is there, whoever shares
    what with whom.

    A lent block counts where no slot holds it. Where a window moves on it always counts: the slot leaves it behind, and
    takes another in its place.

    Attributes:
        layer: what they all are.
        pool: float32 [num_blocks, ...].
        blocks: which of them are free.
        num_row_blocks: of all, those for sequences.
        tables: for each slot the blocks of its tokens; `NO_BLOCK` where a window has left one behind.
        promised: to each slot, free blocks.
        lent: how often each block is lent.
        untrimmed: blocks whose memory is still ours although nobody holds them, unless taken again.
    """

    layer: AttentionLayer
    pool: mx.array
    blocks: BlockPool
    num_row_blocks: int
    tables: list[list[int]]
    promised: list[int]
    lent: Counter[int] = field(default_factory=Counter[int])
    untrimmed: set[int] = field(default_factory=set[int])

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.pool.nbytes // self.blocks.num_blocks

    @property
    def memory(self) -> NDArray[np.float32]:
        """The memory of the pool itself; float32 [num_blocks, ...]."""
        return np.asarray(memoryview(self.pool))  # pyright: ignore[reportArgumentType]

    @property
    def num_spoken_for(self) -> int:
        """Blocks for sequences that slots hold, are promised, or lend."""
        num_blocks = sum(map(self.held, range(len(self.tables)))) + sum(self.promised)
        if self.lent and self.layer.window is None:
            in_tables = {block for table in self.tables for block in table}
            return num_blocks + len(self.lent.keys() - in_tables)
        return num_blocks + len(self.lent)

    def rows_of(self, plan: StepPlan) -> NDArray[np.int32]:
        """Return what the kernel reads of a plan's rows; int32 [R, 2 + blocks]."""
        tables = [self.tables[row.slot] for row in plan.rows]
        rows = np.full((len(tables), 2 + max(map(len, tables))), NO_BLOCK, dtype=np.int32)
        for number, (row, table) in enumerate(zip(plan.rows, tables, strict=True)):
            rows[number, 0], rows[number, 1] = row.num_tokens, row.start
            rows[number, 2 : 2 + len(table)] = table
        return rows

    def needed(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of so many tokens holds at once."""
        return blocks_at_once(self.layer, num_tokens)

    def held(self, slot: int) -> int:
        """Return how many blocks a slot holds."""
        return sum(block != NO_BLOCK for block in self.tables[slot])

    def first_seen(self, length: int) -> int:
        """Return the place of the first block that a token behind `length` others sees into."""
        return 0 if self.layer.window is None else max(0, length - self.layer.window + 1) // BLOCK_TOKENS

    def promise(self, slot: int, num_blocks: int) -> bool:
        """Promise a slot more blocks, or none and return False."""
        if self.num_spoken_for + num_blocks > self.num_row_blocks or not self.blocks.promise(num_blocks):
            return False
        self.promised[slot] += num_blocks
        return True

    def forget(self, slot: int, num_blocks: int) -> None:
        """Take back what a slot was promised."""
        self.blocks.forget(num_blocks)
        self.promised[slot] -= num_blocks

    def grow(self, slot: int, num_tokens: int) -> None:
        """Let a slot hold blocks for so many tokens, promised ones first.

        Raises:
            BlocksExhausted: there is no room that was not promised to others.
        """
        table = self.tables[slot]
        while len(table) < blocks_for(num_tokens):
            is_promised = self.promised[slot] > 0
            table.append(self.blocks.take(is_promised=is_promised))
            self.promised[slot] -= is_promised

    def leave_behind(self, slot: int, length: int) -> None:
        """Give back the blocks that no token behind `length` others sees."""
        table = self.tables[slot]
        for place in reversed(range(self.first_seen(length))):
            if table[place] == NO_BLOCK:
                return  # nor are those before it
            self.give_back(table[place])
            table[place] = NO_BLOCK
            # What it gives back it may take again: the promise is for what it holds at once.
            self.promised[slot] += self.blocks.promise(1)

    def adopt(self, slot: int, blocks: Sequence[int]) -> None:
        """Let an empty slot hold full blocks that others hold too, as far as its next token sees them."""
        first = self.first_seen(len(blocks) * BLOCK_TOKENS)
        for block in blocks[first:]:
            self.blocks.share(block)
        self.tables[slot] = [*[NO_BLOCK] * first, *blocks[first:]]
        self.forget(slot, min(self.promised[slot], self.held(slot)))

    def can_lend(self, slot: int, num_blocks: int) -> bool:
        """Return whether there is room to lend the first blocks of a slot."""
        if self.layer.window is None:
            return True
        new = set(self.tables[slot][:num_blocks]) - {NO_BLOCK} - self.lent.keys()
        return self.num_spoken_for + len(new) <= self.num_row_blocks

    def lend(self, block: int) -> None:
        """Count a block of a slot as lent once more."""
        self.lent[block] += 1

    def take_back(self, block: int) -> None:
        """Count a lent block as lent once less."""
        self.lent[block] -= 1
        if not self.lent[block]:
            del self.lent[block]

    def fill(self, content: bytes) -> int:
        """Return a block that was free and holds these bytes now.

        Raises:
            BlocksExhausted: there is no room that was not promised to others.
        """
        block = self.blocks.take()
        memory = self.memory[block]
        memory[...] = np.frombuffer(content, dtype=np.float32).reshape(memory.shape)
        return block

    def give_back(self, block: int) -> None:
        """Take a holder from a block."""
        if self.blocks.give_back(block):
            self.untrimmed.add(block)

    def clear(self, slot: int) -> None:
        """Empty a slot and forget what it was promised."""
        for block in self.tables[slot]:
            if block != NO_BLOCK:
                self.give_back(block)
        self.tables[slot] = []
        self.forget(slot, self.promised[slot])
