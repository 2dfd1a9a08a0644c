"""Keys and values in blocks of one pool, for the kernels of the CPU.

Layers that are alike share a pool and a table for each slot, which says where the blocks of its tokens lie. The kernel
writes into the pool in place: the order of steps on the stream is the order of its writes, and a block that is read by
several sequences is full, so nobody writes to it. A block that a sequence gives back may be written by a step of the
next one only after the steps of the first, which were started earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from models.blocks import BLOCK_TOKENS, BlockPool, Part, blocks_for
from models.errors import BytesRejected, PlanError
from models.layers.block_group import NO_BLOCK, BlockGroup, blocks_at_once
from models.layers.cache import AttentionLayer, Rotation, Step, tokens_of
from models.layers.recurrence import Recurrence
from models.layers.rope import Angles
from models.layers.slots import SlotStates
from models.step import StepPlan
from native import paged
from native.program import Dimensions, Program


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
        mixed = paged.attention(
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

    def recur(self, layer_index: int, _recurrence: Recurrence, _inputs: Sequence[mx.array], /) -> mx.array:
        """See `Step.recur`: pools hold no states."""
        raise PlanError(self.plan.rows[0].slot, f"the cache keeps no state of layer {layer_index}")

    def state(self) -> list[mx.array]:
        """See `Step.state`. Keys and values are written with what the layer gives, and the last layer needs all."""
        return self._mixed


@dataclass(slots=True)
class PagedPart:
    """A share of one block: its place in each group, `NO_BLOCK` where a window has left it behind."""

    cache: PagedCache
    places: tuple[int, ...]
    is_lent: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of a block in every group: what a window has left behind counts, so that parts fill no pool alone."""
        return sum(group.block_bytes for group in self.cache.groups)

    def drop(self) -> None:
        """Give the share back."""
        for group, block in zip(self.cache.groups, self.places, strict=True):
            if block != NO_BLOCK:
                if self.is_lent:
                    group.take_back(block)
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
        promised: list[tuple[BlockGroup, int]] = []
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

    def share(self, slot: int, first_block: int = 0) -> list[PagedPart]:
        """See `Cache.share`."""
        parts: list[PagedPart] = []
        for place in range(first_block, self.slots[slot].length // BLOCK_TOKENS):
            places = tuple(group.tables[slot][place] for group in self.groups)
            for group, block in zip(self.groups, places, strict=True):
                if block != NO_BLOCK:
                    group.blocks.share(block)
            parts.append(PagedPart(self, places))
        return parts

    def lend(self, slot: int) -> list[Part]:
        """See `Cache.lend`."""
        num_blocks = self.slots[slot].length // BLOCK_TOKENS
        if not all(group.can_lend(slot, num_blocks) for group in self.groups):
            return []
        parts = self.share(slot)
        for part in parts:
            part.is_lent = True
            for group, block in zip(self.groups, part.places, strict=True):
                if block != NO_BLOCK:
                    group.lend(block)
        return list[Part](parts)

    def usable(self, parts: Sequence[Part]) -> int:
        """See `Cache.usable`: as many as leave nothing missing that the next token sees."""
        for count in range(len(parts), 0, -1):
            if all(self._sees(group, number, parts[:count]) for number, group in enumerate(self.groups)):
                return count
        return 0

    def adopt(self, slot: int, parts: Sequence[Part]) -> None:
        """See `Cache.adopt`."""
        self.slots.start(slot, len(parts) * BLOCK_TOKENS)
        for number, group in enumerate(self.groups):
            group.adopt(slot, [_places_of(part)[number] for part in parts])

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
                paged.release_blocks(group.pool, free)

    def write(self, part: Part) -> bytes:
        """See `Cache.write`."""
        mx.synchronize()
        pieces: list[bytes] = []
        for group, block in zip(self.groups, _places_of(part), strict=True):
            is_held = block != NO_BLOCK
            pieces.append(bytes([is_held]))
            if is_held:
                pieces.append(group.memory[block].tobytes())
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

    def _sees(self, group: BlockGroup, number: int, parts: Sequence[Part]) -> bool:
        first = group.first_seen(len(parts) * BLOCK_TOKENS)
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


def _group(
    layer: AttentionLayer, num_layers: int, num_slots: int, num_row_blocks: int, num_part_blocks: int
) -> BlockGroup:
    num_row_blocks = min(num_row_blocks, num_slots * blocks_at_once(layer, num_row_blocks * BLOCK_TOKENS))
    num_blocks = num_row_blocks + num_part_blocks
    pool = paged.kv_pool(num_blocks, num_layers, layer.num_kv_heads, layer.head_dim)
    tables: list[list[int]] = [[] for _ in range(num_slots)]
    return BlockGroup(layer, pool, BlockPool(num_blocks), num_row_blocks, tables, [0] * num_slots)


def _places_of(part: Part) -> tuple[int, ...]:
    if not isinstance(part, PagedPart):
        raise PlanError(-1, "the part is of another cache")
    return part.places
