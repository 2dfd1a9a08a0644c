"""Keys and values of the tokens that were already seen: what a model and its caller need of any cache.

A step opens the slots of its rows (`begin`), each layer gives its queries, keys and values to the open step
(`Step.attend`), and `commit` says how many tokens of each row stay. Nothing here waits for the device: committing is
bookkeeping, so the next step can be built before this one is computed.

Two kinds of cache:

* `models.layers.paged_cache`: blocks in one pool, for the kernels of the CPU; sequences that begin alike share blocks.
* `models.layers.row_cache`: arrays of their own for each row and layer, by MLX's operations, plain or packed; and the
  states of layers that keep one instead of keys and values (`Step.recur`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import mlx.core as mx

from models.blocks import Part
from models.checkpoint.kv_sizes import StateSize
from models.errors import PlanError
from models.layers.low_rank import RowAdapters
from models.layers.recurrence import Recurrence, RecurrentLayer
from models.step import StepPlan


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What a cache has to know of a layer that attends.

    Attributes:
        num_heads: query heads H.
        num_kv_heads: heads H_kv of keys and values; each serves H / H_kv query heads.
        head_dim: width D of a head.
        scale: multiplies the scores.
        window: a token sees itself and so many tokens less one before it; None: all before it.
        is_read_again: whether later layers look at its keys and values too.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    # How a layer is kept does not hang on it.
    is_read_again: bool = field(default=False, compare=False)

    @property
    def state(self) -> StateSize:
        """It keeps no state."""
        return StateSize()


# A layer of a model as its cache knows it.
KeptLayer = AttentionLayer | RecurrentLayer


@dataclass(frozen=True, slots=True)
class Span:
    """Where a row stands in its step.

    Attributes:
        first: number of its first token among the step's.
        count: how many tokens it has.
        start: position of the first in its sequence.
    """

    first: int
    count: int
    start: int


class Rotation(Protocol):
    """Rotary positions of the tokens of one step, made once for all layers that agree on them."""

    def rotate(self, x: mx.array, span: Span) -> mx.array:
        """Turn one row's heads [1, H, T, D]."""
        ...

    def rotate_each(self, x: mx.array) -> mx.array:
        """Turn heads [N, H, 1, D] of a step whose rows have one token each."""
        ...


class Step:
    """One step as the layers read it: tokens and positions on the device, and where keys and values go.

    Attributes:
        plan: what this step computes.
        tokens: int32 [1, N], the rows' one behind the other.
        spans: where each row stands.
        adapters: what its rows add to layers.
    """

    def __init__(self, plan: StepPlan, tokens: mx.array) -> None:
        self.plan = plan
        self.tokens = tokens
        self.spans = _spans(plan)
        self.adapters = RowAdapters(plan)

    @cached_property
    def positions(self) -> mx.array:
        """The position of each token in its sequence; int32 [N]."""
        numbers = [position for span in self.spans for position in range(span.start, span.start + span.count)]
        return mx.array(numbers, dtype=mx.int32)

    @abstractmethod
    def attend(
        self, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array, rotation: Rotation | None
    ) -> mx.array:
        """Store a layer's keys and values, and let each token look at itself and at what came before it in its row.

        Args:
            layer_index: which layer.
            queries: [1, N, H * D], without positions.
            keys: [1, N, H_kv * D], without positions.
            values: [1, N, H_kv * D].
            rotation: applies positions to queries and keys; None: the layer has none.

        Returns:
            [1, N, H * D].

        Raises:
            PlanError: the step is no longer open.
        """

    @abstractmethod
    def attend_again(
        self, layer_index: int, queries: mx.array, keys: mx.array, values: mx.array, rotation: Rotation | None, /
    ) -> mx.array:
        """Let the queries of a later layer look at the keys and values that a layer has stored in this step.

        Args:
            layer_index: which layer has stored them; it is one that is read again.
            queries: [1, N, H * D], without positions.
            keys: what that layer gave to `attend`.
            values: the same.
            rotation: applies positions to queries; None: there are none.

        Returns:
            [1, N, H * D].

        Raises:
            PlanError: the step is no longer open, or the layer has stored nothing in it that is read again.
        """

    @abstractmethod
    def recur(self, layer_index: int, recurrence: Recurrence, inputs: Sequence[mx.array], /) -> mx.array:
        """Let a layer that keeps a state go through each row's tokens, from the state that the row has.

        Args:
            layer_index: which layer.
            recurrence: what it computes.
            inputs: of all rows, each [1, N, ...].

        Returns:
            What `recurrence` gives, [1, N, ...].

        Raises:
            PlanError: the step is no longer open, or its cache keeps no state of the layer.
        """

    @abstractmethod
    def state(self) -> list[mx.array]:
        """Return arrays to evaluate, so that everything this step wrote is computed."""

    def select(self, hidden: mx.array) -> mx.array:
        """Keep the positions whose logits the plan asks for.

        Args:
            hidden: [1, N, E].

        Returns:
            [1, M, E], M the number of positions asked for, in the order of rows; `hidden` itself where that is all.
        """
        rows = zip(self.spans, self.plan.rows, strict=True)
        wanted = [span.first + offset for span, row in rows for offset in row.logits_at]
        if len(wanted) == hidden.shape[1]:
            return hidden
        if len(wanted) == 1:
            return hidden[:, wanted[0] : wanted[0] + 1]  # [1, N, E] -> [1, 1, E]
        return hidden[:, mx.array(wanted, dtype=mx.int32)]  # [1, N, E] -> [1, M, E]


class Cache(Protocol):
    """Room for a fixed number of sequences, one a slot."""

    @property
    def num_slots(self) -> int:
        """How many sequences fit."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that slots and parts hold now."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens that the slots hold or have room for in what they hold, shared ones once; read on any thread."""
        ...

    @property
    def fingerprint(self) -> str:
        """The same for caches that read each other's parts, for models of one revision."""
        ...

    @property
    def can_reject(self) -> bool:
        """Whether a commit may accept fewer tokens than its step had: no layer's state is a sum that forgets."""
        ...

    def length(self, slot: int) -> int:
        """Return how many tokens are committed in a slot."""
        ...

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """Promise a slot room for so many tokens; False, and nothing is changed, where there is too little."""
        ...

    def begin(self, plan: StepPlan, device_tokens: mx.array | None = None) -> Step:
        """Open a step: check it against its slots and make room.

        Args:
            plan: one row a slot.
            device_tokens: integers [R], one for each row of the plan that has no `token_ids`, in their order.

        Raises:
            PlanError: no rows, a slot twice, a row without tokens, a start that is not the slot's length, a slot with
                an open step, `logits_at` outside the row, or no device tokens where they are needed.
            BlocksExhausted: there is no room that was not promised to others.
        """
        ...

    def commit(self, slot: int, accepted: int) -> None:
        """Close the slot's part of its open step; its first `accepted` tokens stay and the rest are dropped.

        Raises:
            CommitError: no step is open, or `accepted` is not between 0 and its number of tokens.
        """
        ...

    def share(self, slot: int, first_block: int = 0) -> Sequence[Part]:
        """Return parts of the slot's full blocks of committed tokens from `first_block` on.

        Whoever takes them counts what they hold.
        """
        ...

    def lend(self, slot: int) -> list[Part]:
        """Return parts of all full blocks of a slot, for sequences that will begin behind them.

        Until they are dropped they count with the sequences, where no slot that holds the same blocks counts them;
        empty where there is no room for that.
        """
        ...

    def usable(self, parts: Sequence[Part]) -> int:
        """Return how many of a sequence's first parts can be adopted together."""
        ...

    def adopt(self, slot: int, parts: Sequence[Part]) -> None:
        """Put an empty slot behind the tokens of a sequence's first parts, which stay whose they are.

        Raises:
            PlanError: the slot is not empty.
        """
        ...

    def release(self, slot: int) -> None:
        """Empty a slot, give its memory back and forget what it was promised."""
        ...

    def trim(self) -> None:
        """Give memory back to the system that nobody holds: for idle moments."""
        ...

    def write(self, part: Part) -> bytes:
        """Return what a part holds, once it is computed."""
        ...

    def read(self, data: bytes) -> Part | None:
        """Return a part that holds what `write` returned, here or in another process; None: there is no room.

        Raises:
            BytesRejected: the bytes are not those of a part of such a cache.
        """
        ...


def tokens_of(plan: StepPlan, device_tokens: mx.array | None) -> mx.array:
    """Return int32 [1, N]: the tokens of all rows, those that the plan does not know from the device.

    Raises:
        PlanError: there is not one device token for each row that needs one.
    """
    waiting = [row for row in plan.rows if row.token_ids is None]
    if not waiting:
        return mx.array([[token for row in plan.rows for token in row.token_ids or ()]], dtype=mx.int32)
    if device_tokens is None or device_tokens.size != len(waiting):
        raise PlanError(waiting[0].slot, f"the step needs {len(waiting)} tokens from the device")
    device_tokens = mx.reshape(device_tokens, (1, -1)).astype(mx.int32)
    if len(waiting) == len(plan.rows):
        return device_tokens
    parts: list[mx.array] = []
    taken = 0
    for row in plan.rows:
        if row.token_ids is None:
            parts.append(device_tokens[:, taken : taken + 1])
            taken += 1
        else:
            parts.append(mx.array([row.token_ids], dtype=mx.int32))
    return mx.concatenate(parts, axis=1)


def _spans(plan: StepPlan) -> tuple[Span, ...]:
    spans: list[Span] = []
    first = 0
    for row in plan.rows:
        spans.append(Span(first, row.num_tokens, row.start))
        first += row.num_tokens
    return tuple(spans)
