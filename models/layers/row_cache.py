"""Keys and values in arrays of their own for each row and layer, by MLX's operations, and states of recurrent layers.

What a layer keeps is a store (`models.layers.stores`): plain, within a window, packed, or a state. Rows of one step
share nothing but the step: each is attended to by itself, so its numbers depend on no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import mlx.core as mx

from models.blocks import BLOCK_TOKENS, Part
from models.errors import PlanError
from models.layers.arithmetic import Arithmetic
from models.layers.attention import split_heads
from models.layers.cache import AttentionLayer, KeptLayer, Rotation, Span, Step, tokens_of
from models.layers.part_bytes import arrays_of, bytes_of
from models.layers.recurrence import Recurrence, Walk
from models.layers.slots import SlotStates
from models.layers.stores.state import StateStore
from models.layers.stores.store import LayerStore, Store
from models.step import StepPlan

# What one layer puts into a part: copies of its arrays, or nothing where a window has left the block behind.
Content = tuple[mx.array, ...] | None
Kept = TypeVar("Kept", bound=LayerStore)
RowStore = Store | StateStore


class RowStep(Step):
    """A step of rows that are attended to one by one."""

    def __init__(self, plan: StepPlan, tokens: mx.array, cache: RowCache[RowStore], arithmetic: Arithmetic) -> None:
        super().__init__(plan, tokens)
        self._cache = cache
        self._arithmetic = arithmetic
        self._kept: dict[tuple[int, int], tuple[mx.array, mx.array]] = {}

    def attend(
        self, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array, rotation: Rotation | None
    ) -> mx.array:
        """See `Step.attend`."""
        layer = self._layer(layer_index)
        heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
        if len(self.spans) > 1 and queries.shape[1] == len(self.spans):
            rows = self._split_each(queries, keys, values, heads, rotation)
        else:
            rows = [self._split(queries, keys, values, heads, span, rotation) for span in self.spans]
        mixed = [
            self._attend_row(row.slot, layer_index, *parts) for row, parts in zip(self.plan.rows, rows, strict=True)
        ]
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=1)

    def attend_again(
        self, layer_index: int, queries: mx.array, _keys: mx.array, _values: mx.array, rotation: Rotation | None, /
    ) -> mx.array:
        """See `Step.attend_again`; the row has its own."""
        layer = self._layer(layer_index)
        mixed: list[mx.array] = []
        for row, span in zip(self.plan.rows, self.spans, strict=True):
            self._cache.slots.check_open(row.slot, self)
            if (row.slot, layer_index) not in self._kept:
                raise PlanError(row.slot, f"layer {layer_index} has stored nothing that is read again")
            heads = split_heads(queries[:, span.first : span.first + span.count], layer.num_heads)
            heads = heads if rotation is None else rotation.rotate(heads, span)
            stored = self._kept[row.slot, layer_index]
            mixed.append(self._arithmetic.attend(heads, *stored, layer.scale, layer.window))
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=1)

    def recur(self, layer_index: int, recurrence: Recurrence, inputs: Sequence[mx.array], /) -> mx.array:
        """See `Step.recur`; all rows together."""
        stores = [self._state_store(row.slot, layer_index) for row in self.plan.rows]
        walks = [
            Walk(span.first, tuple(store.pieces(span.count)), store.state)
            for store, span in zip(stores, self.spans, strict=True)
        ]
        mixed, states = recurrence(inputs, walks)
        for store, span, reached in zip(stores, self.spans, states, strict=True):
            store.advance(reached, span.count)
        return mixed

    def state(self) -> list[mx.array]:
        """See `Step.state`."""
        stores = [store for row in self.plan.rows for store in self._cache.stores(row.slot)]
        return [array for store in stores for array in store.arrays()]

    def _layer(self, layer_index: int) -> AttentionLayer:
        layer = self._cache.layers[layer_index]
        if not isinstance(layer, AttentionLayer):
            raise PlanError(self.plan.rows[0].slot, f"layer {layer_index} keeps a state and attends to nothing")
        return layer

    def _state_store(self, slot: int, layer_index: int) -> StateStore:
        self._cache.slots.check_open(slot, self)
        store = self._cache.stores(slot)[layer_index]
        if not isinstance(store, StateStore):
            raise PlanError(slot, f"the cache keeps no state of layer {layer_index}")
        return store

    def _split(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        heads: tuple[int, int, int],
        span: Span,
        rotation: Rotation | None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Return one row's heads, each [1, H, T, D], positions applied."""
        parts = (queries, keys, values)
        if span.count < queries.shape[1]:
            parts = tuple(x[:, span.first : span.first + span.count] for x in parts)
        queries, keys, values = (split_heads(x, number) for x, number in zip(parts, heads, strict=True))
        if rotation is None:
            return queries, keys, values
        return rotation.rotate(queries, span), rotation.rotate(keys, span), values

    def _split_each(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        heads: tuple[int, int, int],
        rotation: Rotation | None,
    ) -> list[tuple[mx.array, mx.array, mx.array]]:
        """Do the same for rows of one token each, their positions applied together."""
        num_rows = len(self.spans)
        queries, keys, values = (  # [1, N, H * D] -> [N, H, 1, D]
            mx.reshape(x, (num_rows, number, 1, -1)) for x, number in zip((queries, keys, values), heads, strict=True)
        )
        if rotation is not None:
            queries, keys = rotation.rotate_each(queries), rotation.rotate_each(keys)
        each = [slice(row, row + 1) for row in range(num_rows)]
        return [(queries[row], keys[row], values[row]) for row in each]

    def _attend_row(self, slot: int, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        cache = self._cache
        cache.slots.check_open(slot, self)
        layer, store = self._layer(layer_index), cache.stores(slot)[layer_index]
        if isinstance(store, StateStore):
            raise PlanError(slot, f"the cache keeps a state of layer {layer_index}")
        keys, values = store.update(keys, values)  # [1, H_kv, T, D] -> [1, H_kv, L, D]
        if layer.is_read_again:
            self._kept[slot, layer_index] = keys, values
        return self._arithmetic.attend(queries, keys, values, layer.scale, layer.window)


@dataclass(slots=True)
class Loan:
    """Blocks that are lent to sequences that will begin behind them.

    Attributes:
        num_blocks: that are not dropped.
        slots: that hold the same tokens, and so count them with what they were promised.
    """

    num_blocks: int
    slots: set[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that nobody else counts."""
        return 0 if self.slots else self.num_blocks * BLOCK_TOKENS


@dataclass(slots=True)
class RowPart:
    """Copies of what one block of a sequence holds in each layer."""

    cache: RowCache[Any]
    contents: tuple[Content, ...]
    loan: Loan | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for content in self.contents for array in content or ())

    def drop(self) -> None:
        """Let the arrays go."""
        self.cache.num_part_bytes -= self.nbytes
        self.contents = ()
        if self.loan is not None:
            self.loan.num_blocks -= 1


class RowCache(Generic[Kept]):
    """Room for a fixed number of sequences.

    Args:
        layers: the model's, in order.
        num_slots: sequences.
        num_tokens: that may be promised to all sequences together.
        make_step: opens a step of this cache, of its plan and its tokens.
        make_store: returns an empty store for the layer of that number.
        scheme: a word for what the stores keep; caches of one word read each other's parts.

    Attributes:
        num_part_bytes: of the parts that were shared or read and not dropped.
    """

    def __init__(
        self,
        layers: Sequence[KeptLayer],
        num_slots: int,
        num_tokens: int,
        make_step: Callable[[StepPlan, mx.array, RowCache[Kept]], Step],
        make_store: Callable[[int], Kept],
        scheme: str,
    ) -> None:
        self.layers = tuple(layers)
        self._make_step = make_step
        self._num_tokens = num_tokens
        self._scheme = scheme
        self.slots = SlotStates(num_slots)
        self._stores = [[make_store(number) for number in range(len(layers))] for _ in range(num_slots)]
        self._promised = [0] * num_slots
        self._loans: list[Loan] = []
        self.num_part_bytes = 0

    @property
    def num_slots(self) -> int:
        """How many sequences fit."""
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        """Bytes that the slots and parts hold."""
        return self.num_part_bytes + sum(store.nbytes for stores in self._stores for store in stores)

    @property
    def num_tokens(self) -> int:
        """See `Cache.num_tokens`."""
        return sum(self.slots[slot].length for slot in range(len(self.slots)))

    @property
    def fingerprint(self) -> str:
        """See `Cache.fingerprint`."""
        return f"rows {self._scheme} {' '.join(map(_word, self.layers))}"

    @property
    def can_reject(self) -> bool:
        """See `Cache.can_reject`."""
        return all(store.can_trim for store in self._stores[0])

    def stores(self, slot: int) -> list[Kept]:
        """Return what each layer keeps of a slot."""
        return self._stores[slot]

    def length(self, slot: int) -> int:
        """Return how many tokens are committed in a slot."""
        return self.slots[slot].length

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """See `Cache.reserve`."""
        missing = max(0, num_tokens - self._promised[slot])
        self._loans = [loan for loan in self._loans if loan.num_blocks]
        num_lent = sum(loan.num_tokens for loan in self._loans)
        if sum(self._promised) + num_lent + missing > self._num_tokens:
            return False
        self._promised[slot] += missing
        return True

    def begin(self, plan: StepPlan, device_tokens: mx.array | None = None) -> Step:
        """See `Cache.begin`."""
        self.slots.check(plan)
        step = self._make_step(plan, tokens_of(plan, device_tokens), self)
        self.slots.open(step)
        return step

    def commit(self, slot: int, accepted: int) -> None:
        """See `Cache.commit`."""
        state = self.slots[slot]
        if state.close(accepted):
            for store in self._stores[slot]:
                # A step that was begun and never built has added nothing.
                store.trim(store.length - state.length)

    def share(self, slot: int, first_block: int = 0) -> list[RowPart]:
        """See `Cache.share`; the copies are started at once, so that they hold nothing but themselves."""
        num_blocks = self.slots[slot].length // BLOCK_TOKENS
        parts = [
            self._part(tuple(store.extract(block) for store in self._stores[slot]))
            for block in range(first_block, num_blocks)
        ]
        mx.async_eval([part.contents for part in parts])  # pyright: ignore[reportUnknownMemberType]
        return parts

    def lend(self, slot: int) -> list[Part]:
        """See `Cache.lend`; the copies come on top of what a slot holds while it counts them."""
        parts = self.share(slot)
        loan = Loan(len(parts), {slot})
        self._loans.append(loan)
        for part in parts:
            part.loan = loan
        return list[Part](parts)

    def usable(self, parts: Sequence[Part]) -> int:
        """See `Cache.usable`."""
        contents = [_contents_of(part) for part in parts]
        for count in range(len(parts), 0, -1):
            if all(
                all(contents[block][number] is not None for block in store.needed(count))
                for number, store in enumerate(self._stores[0])
            ):
                return count
        return 0

    def adopt(self, slot: int, parts: Sequence[Part]) -> None:
        """See `Cache.adopt`."""
        self.slots.start(slot, len(parts) * BLOCK_TOKENS)
        contents = [_contents_of(part) for part in parts]
        for number, store in enumerate(self._stores[slot]):
            store.adopt(len(parts), [content[number] for content in contents])
        for part in parts:
            if isinstance(part, RowPart) and part.loan is not None:
                part.loan.slots.add(slot)

    def release(self, slot: int) -> None:
        """See `Cache.release`."""
        self.slots.clear(slot)
        self._promised[slot] = 0
        for loan in self._loans:
            loan.slots.discard(slot)
        for store in self._stores[slot]:
            store.clear()

    def trim(self) -> None:
        """See `Cache.trim`; arrays that are freed are MLX's."""

    def write(self, part: Part) -> bytes:
        """See `Cache.write`."""
        return bytes_of(_contents_of(part))

    def read(self, data: bytes) -> Part:
        """See `Cache.read`."""
        return self._part(arrays_of(data, len(self.layers)))

    def _part(self, contents: tuple[Content, ...]) -> RowPart:
        part = RowPart(self, contents)
        self.num_part_bytes += part.nbytes
        return part


def _word(layer: KeptLayer) -> str:
    if isinstance(layer, AttentionLayer):
        return f"{layer.num_kv_heads}x{layer.head_dim} window {layer.window}"
    return f"state {layer.state.numbers} {layer.state.floats}"


def _contents_of(part: Part) -> tuple[Content, ...]:
    if not isinstance(part, RowPart):
        raise PlanError(-1, "the part is of another cache")
    return part.contents
