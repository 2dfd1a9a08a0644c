"""Keys and values in blocks of one pool, for the kernels of the CPU.

Layers that are alike share a pool and a table for each slot, which says where the blocks of its tokens lie. The kernel
writes into the pool in place: the order of steps on the stream is the order of its writes, and a block that is read by
several sequences is full, so nobody writes to it. A block that a sequence gives back may be written by a step of the
next one only after the steps of the first, which were started earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from models.blocks import BLOCK_TOKENS, MAX_STEP_TOKENS, BlockPool, Part, blocks_for
from models.errors import BytesRejected, PlanError
from models.layers.cache import AttentionLayer, Rotation, SlotStates, Step, tokens_of
from models.layers.rope import Angles
from models.step import StepPlan
from native import kernels
from native.program import Dimensions, Program

NO_BLOCK = -1


class PagedStep(Step):
    """A step of rows whose keys and values lie in pools.

    They are written when what the step gives is computed: a step whose results nobody asks for writes nothing.
    """

    def __init__(self, plan: StepPlan, tokens: mx.array, cache: PagedCache) -> None:
        super().__init__(plan, tokens)
        self._cache = cache
        self._rows = [mx.array(group.rows_of(plan)) for group in cache.groups]
        self._mixed: list[mx.array] = []

    @cached_property
    def inputs(self) -> list[mx.array]:
        """All that differs from one step to the next."""
        return [self.tokens, self.positions, *self._rows, *(group.pool for group in self._cache.groups)]

    @property
    def dimensions(self) -> list[Dimensions]:
        """What the sizes of `inputs` are called: `tokens`, and others that are in no output of a layer."""
        numbers = range(len(self._rows))
        rows = [("sequences", f"blocks {number}") for number in numbers]
        pools = [(f"pool {number}", *[None] * (group.pool.ndim - 1)) for number, group in enumerate(self._cache.groups)]
        return [(None, "tokens"), ("tokens",), *rows, *pools]

    def run(self, program: Program) -> None:
        """Have a program compute what every layer stores, instead of `attend`."""
        self._cache.slots.check_open(self.plan.rows[0].slot, self)
        self._mixed = program(self.inputs)

    def attend(
        self, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array, rotation: Rotation | None
    ) -> mx.array:
        """See `Step.attend`; one operation for all rows."""
        self._cache.slots.check_open(self.plan.rows[0].slot, self)
        group_index, layer = self._cache.places[layer_index]
        group = self._cache.groups[group_index]
        angles = rotation if isinstance(rotation, Angles) else Angles(None, None)
        mixed = kernels.paged_attention(
            queries,
            keys,
            values,
            angles.cosines,
            angles.sines,
            group.pool,
            self._rows[group_index],
            layer=layer,
            scale=group.layer.scale,
            window=group.layer.window or 0,
            interleaved=angles.is_interleaved,
        )
        self._mixed = [mixed]
        return mixed

    def attend_again(
        self, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array, rotation: Rotation | None, /
    ) -> mx.array:
        """See `Step.attend_again`: the same keys and values are stored in the same places once more."""
        return self.attend(layer_index, queries, keys, values, rotation)

    def state(self) -> list[mx.array]:
        """See `Step.state`. Keys and values are written with what the layer gives, and the last layer needs all."""
        return self._mixed


@dataclass(slots=True)
class _Group:
    """Layers that are alike: one pool, and a table of blocks for each slot.

    Slots hold and are promised no more than `num_row_blocks` together, each counting what it shares; the rest of the
    pool is for parts. So what was promised is there, whoever shares what with whom.
    """

    layer: AttentionLayer
    pool: mx.array
    blocks: BlockPool
    num_row_blocks: int
    tables: list[list[int]]
    promised: list[int]
    untrimmed: set[int] = field(default_factory=set[int])

    @property
    def block_bytes(self) -> int:
        return self.pool.nbytes // self.blocks.num_blocks

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
        if self.layer.window is None:
            return blocks_for(num_tokens)
        return min(blocks_for(num_tokens), blocks_for(self.layer.window + MAX_STEP_TOKENS) + 1)

    def held(self, slot: int) -> int:
        """Return how many blocks a slot holds."""
        return sum(block != NO_BLOCK for block in self.tables[slot])

    def promise(self, slot: int, num_blocks: int) -> bool:
        """Promise a slot more blocks, or none and return False."""
        num_spoken_for = sum(map(self.held, range(len(self.tables)))) + sum(self.promised)
        if num_spoken_for + num_blocks > self.num_row_blocks or not self.blocks.promise(num_blocks):
            return False
        self.promised[slot] += num_blocks
        return True

    def forget(self, slot: int, num_blocks: int) -> None:
        """Take back what a slot was promised."""
        self.blocks.forget(num_blocks)
        self.promised[slot] -= num_blocks

    def grow(self, slot: int, num_tokens: int) -> None:
        table = self.tables[slot]
        while len(table) < blocks_for(num_tokens):
            is_promised = self.promised[slot] > 0
            table.append(self.blocks.take(is_promised=is_promised))
            self.promised[slot] -= is_promised

    def leave_behind(self, slot: int, length: int) -> None:
        """Give back the blocks that no later token sees."""
        if self.layer.window is None:
            return
        table = self.tables[slot]
        for place in range(max(0, length - self.layer.window + 1) // BLOCK_TOKENS):
            if table[place] != NO_BLOCK:
                self.give_back(table[place])
                table[place] = NO_BLOCK
                # What it gives back it may take again: the promise is for what it holds at once.
                self.promised[slot] += self.blocks.promise(1)

    def fill(self, content: bytes) -> int:
        block = self.blocks.take()
        memory = _memory(self.pool)[block]
        memory[...] = np.frombuffer(content, dtype=np.float32).reshape(memory.shape)
        return block

    def give_back(self, block: int) -> None:
        if self.blocks.give_back(block):
            self.untrimmed.add(block)

    def clear(self, slot: int) -> None:
        for block in self.tables[slot]:
            if block != NO_BLOCK:
                self.give_back(block)
        self.tables[slot] = []
        self.forget(slot, self.promised[slot])


@dataclass(slots=True)
class PagedPart:
    """A share of one block: its place in each group, `NO_BLOCK` where a window has left it behind."""

    cache: PagedCache
    places: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a block in every group: what a window has left behind counts, so that parts fill no pool alone."""
        return sum(group.block_bytes for group in self.cache.groups)

    def drop(self) -> None:
        """Give the share back."""
        for group, block in zip(self.cache.groups, self.places, strict=True):
            if block != NO_BLOCK:
                group.give_back(block)


class PagedCache:
    """Room for a fixed number of sequences in pools that take memory as it is used.

    Args:
        layers: the model's, in order.
        num_slots: sequences.
        num_tokens: of all sequences together.
        num_part_tokens: of all parts together.
    """

    can_reject = True

    def __init__(
        self, layers: Sequence[AttentionLayer], num_slots: int, num_tokens: int, num_part_tokens: int = 0
    ) -> None:
        kinds = list(dict.fromkeys(layers))
        self.places = _places(layers, kinds)
        # The last block of each sequence is not full.
        rows, parts = blocks_for(num_tokens) + num_slots, blocks_for(num_part_tokens)
        self.groups = [_group(kind, list(layers).count(kind), num_slots, rows, parts) for kind in kinds]
        self.slots = SlotStates(num_slots)

    @property
    def num_slots(self) -> int:
        """How many sequences fit."""
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are held."""
        return sum(group.blocks.num_held * group.block_bytes for group in self.groups)

    @property
    def num_tokens(self) -> int:
        """See `Cache.num_tokens`."""
        held = {block for table in list(self.groups[0].tables) for block in list(table) if block != NO_BLOCK}
        return len(held) * BLOCK_TOKENS

    @property
    def fingerprint(self) -> str:
        """See `Cache.fingerprint`."""
        return "paged " + " ".join(
            f"{tuple(group.pool.shape[1:])} window {group.layer.window}" for group in self.groups
        )

    def length(self, slot: int) -> int:
        """Return how many tokens are committed in a slot."""
        return self.slots[slot].length

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """See `Cache.reserve`."""
        promised: list[tuple[_Group, int]] = []
        for group in self.groups:
            missing = max(0, group.needed(num_tokens) - group.held(slot) - group.promised[slot])
            if not group.promise(slot, missing):
                for before, num_blocks in promised:
                    before.forget(slot, num_blocks)
                return False
            promised.append((group, missing))
        return True

    def begin(self, plan: StepPlan, device_tokens: mx.array | None = None) -> PagedStep:
        """See `Cache.begin`."""
        self.slots.check(plan)
        tokens = tokens_of(plan, device_tokens)
        for row in plan.rows:
            for group in self.groups:
                group.grow(row.slot, row.start + row.num_tokens)
        step = PagedStep(plan, tokens, self)
        self.slots.open(step)
        return step

    def commit(self, slot: int, accepted: int) -> None:
        """See `Cache.commit`; what was not accepted is written over by the next step."""
        state = self.slots[slot]
        state.close(accepted)
        for group in self.groups:
            group.leave_behind(slot, state.length)

    def share(self, slot: int, first_block: int = 0) -> list[Part]:
        """See `Cache.share`."""
        parts: list[Part] = []
        for place in range(first_block, self.slots[slot].length // BLOCK_TOKENS):
            places = tuple(group.tables[slot][place] for group in self.groups)
            for group, block in zip(self.groups, places, strict=True):
                if block != NO_BLOCK:
                    group.blocks.share(block)
            parts.append(PagedPart(self, places))
        return parts

    def usable(self, parts: Sequence[Part]) -> int:
        """See `Cache.usable`: as many as leave nothing missing that the next token sees."""
        for count in range(len(parts), 0, -1):
            if all(self._sees(group, number, parts[:count]) for number, group in enumerate(self.groups)):
                return count
        return 0

    def adopt(self, slot: int, parts: Sequence[Part]) -> None:
        """See `Cache.adopt`."""
        length = len(parts) * BLOCK_TOKENS
        self.slots.start(slot, length)
        for number, group in enumerate(self.groups):
            table = [_places_of(part)[number] for part in parts]
            for block in table:
                if block != NO_BLOCK:
                    group.blocks.share(block)
            group.tables[slot] = table
            group.forget(slot, min(group.promised[slot], group.held(slot)))
            group.leave_behind(slot, length)

    def release(self, slot: int) -> None:
        """See `Cache.release`."""
        self.slots.clear(slot)
        for group in self.groups:
            group.clear(slot)

    def trim(self) -> None:
        """See `Cache.trim`."""
        for group in self.groups:
            free = [block for block in group.untrimmed if not group.blocks.is_held(block)]
            group.untrimmed.clear()
            if free:
                mx.synchronize()  # a step of whoever held them before may still be writing
                kernels.release_blocks(group.pool, free)

    def write(self, part: Part) -> bytes:
        """See `Cache.write`."""
        mx.synchronize()
        pieces: list[bytes] = []
        for group, block in zip(self.groups, _places_of(part), strict=True):
            is_held = block != NO_BLOCK
            pieces.append(bytes([is_held]))
            if is_held:
                pieces.append(_memory(group.pool)[block].tobytes())
        return b"".join(pieces)

    def read(self, data: bytes) -> Part | None:
        """See `Cache.read`."""
        contents = self._split(data)
        held = [group for group, content in zip(self.groups, contents, strict=True) if content is not None]
        if any(group.blocks.num_free <= group.blocks.num_promised for group in held):
            return None
        mx.synchronize()  # a step of whoever held the block before may still be writing
        places = [
            NO_BLOCK if content is None else group.fill(content)
            for group, content in zip(self.groups, contents, strict=True)
        ]
        return PagedPart(self, tuple(places))

    def _split(self, data: bytes) -> list[bytes | None]:
        contents: list[bytes | None] = []
        place = 0
        for group in self.groups:
            is_held = data[place : place + 1] == b"\x01"
            end = place + 1 + is_held * group.block_bytes
            contents.append(data[place + 1 : end] if is_held else None)
            place = end
        if place != len(data):
            raise BytesRejected
        return contents

    def _sees(self, group: _Group, number: int, parts: Sequence[Part]) -> bool:
        window = group.layer.window
        length = len(parts) * BLOCK_TOKENS
        first = 0 if window is None else max(0, length - window + 1) // BLOCK_TOKENS
        return all(_places_of(part)[number] != NO_BLOCK for part in parts[first:])


def _places(layers: Sequence[AttentionLayer], kinds: list[AttentionLayer]) -> list[tuple[int, int]]:
    """Return for each layer its group, and its number in it."""
    counts = [0] * len(kinds)
    places: list[tuple[int, int]] = []
    for layer in layers:
        group = kinds.index(layer)
        places.append((group, counts[group]))
        counts[group] += 1
    return places


def _group(layer: AttentionLayer, num_layers: int, num_slots: int, num_row_blocks: int, num_part_blocks: int) -> _Group:
    num_blocks = num_row_blocks + num_part_blocks
    pool = kernels.kv_pool(num_blocks, num_layers, layer.num_kv_heads, layer.head_dim)
    tables: list[list[int]] = [[] for _ in range(num_slots)]
    return _Group(layer, pool, BlockPool(num_blocks), num_row_blocks, tables, [0] * num_slots)


def _places_of(part: Part) -> tuple[int, ...]:
    if not isinstance(part, PagedPart):
        raise PlanError(-1, "the part is of another cache")
    return part.places


def _memory(pool: mx.array) -> NDArray[np.float32]:
    """Return the memory of a pool itself; float32 [num_blocks, ...]."""
    return np.asarray(memoryview(pool))  # pyright: ignore[reportArgumentType]
