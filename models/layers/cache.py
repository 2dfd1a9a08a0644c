"""Keys and values of the tokens that were already seen, one slot a sequence.

A step opens a slot (`begin`), each layer adds its keys and values to the open step (`Step.update`), and `commit` says
how many of its tokens stay. Nothing here waits for the device: committing is bookkeeping, so the next step can be
built before this one is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from models.errors import CommitError, PlanError
from models.step import RowPlan, StepPlan

BLOCK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A slot's state at one moment, valid for any slot of the same cache.

    It shares the slot's arrays, which are never changed under it: the slot's next write copies them.

    Attributes:
        length: tokens it holds.
        keys: for each layer [1, H_kv, capacity, D].
        values: the same for the values.
    """

    length: int
    keys: tuple[mx.array, ...]
    values: tuple[mx.array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays it keeps alive."""
        return sum(array.nbytes for array in (*self.keys, *self.values))


class Step:
    """One step as the layers read it: tokens and positions on the device, and where keys and values go.

    Attributes:
        plan: what this step computes.
        tokens: int32 [B, T].
        offset: position of the first token.
    """

    def __init__(self, plan: StepPlan, tokens: mx.array, slot: _Slot) -> None:
        self.plan = plan
        self.tokens = tokens
        self.offset = slot.length
        self._slot = slot

    def update(self, layer_index: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add a layer's keys and values, and return all of that layer up to and including them.

        Args:
            layer_index: which layer.
            keys: [B, H_kv, T, D], positions applied.
            values: [B, H_kv, T, D].

        Returns:
            Keys and values, each [B, H_kv, L, D] with L = offset + T.

        Raises:
            PlanError: the step was committed or its slot was released or restored.
        """
        slot = self._slot
        if slot.open_step is not self:
            raise PlanError(slot.index, "the step is no longer open")
        end = self.offset + keys.shape[2]
        # In place where nothing else holds the buffer: no snapshot, and no step that is still computed.
        slot.keys[layer_index][:, :, self.offset : end] = keys
        slot.values[layer_index][:, :, self.offset : end] = values
        if end == slot.capacity:
            return slot.keys[layer_index], slot.values[layer_index]
        return slot.keys[layer_index][:, :, :end], slot.values[layer_index][:, :, :end]

    def select(self, hidden: mx.array) -> mx.array:
        """Keep the positions whose logits the plan asks for.

        Args:
            hidden: [B, T, E].

        Returns:
            [B, N, E], N the number of positions asked for; `hidden` itself where that is all of them.
        """
        wanted = self.plan.rows[0].logits_at
        num_tokens = hidden.shape[1]
        if len(wanted) == num_tokens:
            return hidden
        if len(wanted) == 1:
            return hidden[:, wanted[0] : wanted[0] + 1]  # [B, T, E] -> [B, 1, E]
        return hidden[:, mx.array(wanted, dtype=mx.int32)]  # [B, T, E] -> [B, N, E]

    def state(self) -> list[mx.array]:
        """Return the arrays to evaluate so that everything this step wrote is computed."""
        return [*self._slot.keys, *self._slot.values]


class KVCache:
    """Room for a fixed number of sequences, each growing in blocks of 256 tokens.

    This version computes one row a step; the verbs are those that many rows need.
    """

    def __init__(self, num_layers: int, num_slots: int, kv_heads: int, head_dim: int, dtype: mx.Dtype) -> None:
        """Make empty slots; nothing is allocated yet."""
        self._shape = (1, kv_heads, BLOCK_TOKENS, head_dim)
        self._num_layers = num_layers
        self._dtype = dtype
        self._slots = [_Slot(index) for index in range(num_slots)]

    @property
    def num_slots(self) -> int:
        """How many sequences fit."""
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes that all slots hold together, without snapshots."""
        return sum(array.nbytes for slot in self._slots for array in (*slot.keys, *slot.values))

    def length(self, slot: int) -> int:
        """Return how many tokens are committed in a slot."""
        return self._slot(slot).length

    def begin(self, plan: StepPlan, device_tokens: mx.array | None = None) -> Step:
        """Open a step: check it against its slot and make room.

        Args:
            plan: exactly one row in this version.
            device_tokens: integers [B] or [B, 1], one a row in the order of the plan; read for rows without
                `token_ids`.

        Returns:
            What the layers read.

        Raises:
            PlanError: more than one row, no tokens, a start that is not the slot's length, a slot with an open step,
                `logits_at` outside the row, or no device tokens where they are needed.
        """
        if len(plan.rows) != 1:
            raise PlanError(-1, f"a step has one row in this version, not {len(plan.rows)}")
        row = plan.rows[0]
        slot = self._slot(row.slot)
        slot.check(row)
        tokens = _tokens_of(row, device_tokens)
        self._grow(slot, row.start + row.num_tokens)
        step = Step(plan, tokens, slot)
        slot.open_step = step
        return step

    def commit(self, slot: int, accepted: int) -> None:
        """Close the slot's open step; its first `accepted` tokens stay and the rest are dropped.

        Raises:
            CommitError: no step is open, or `accepted` is not between 0 and its number of tokens.
        """
        self._slot(slot).commit(accepted)

    def snapshot(self, slot: int) -> Snapshot:
        """Return the slot's committed state; an open step is no part of it."""
        held = self._slot(slot)
        return Snapshot(held.length, tuple(_share(held.keys)), tuple(_share(held.values)))

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Put a slot into the state of `snapshot`, dropping what it held and any open step."""
        held = self._slot(slot)
        held.clear()
        held.length = snapshot.length
        held.keys.extend(_share(snapshot.keys))
        held.values.extend(_share(snapshot.values))

    def release(self, slot: int) -> None:
        """Empty a slot and give its memory back."""
        self._slot(slot).clear()

    def _slot(self, index: int) -> _Slot:
        if not 0 <= index < len(self._slots):
            raise PlanError(index, f"there are {len(self._slots)} slots")
        return self._slots[index]

    def _grow(self, slot: _Slot, length: int) -> None:
        missing = length - slot.capacity
        if missing <= 0:
            return
        batch, heads, _, width = self._shape
        room = -(-missing // BLOCK_TOKENS) * BLOCK_TOKENS
        if not slot.keys:
            shape = (batch, heads, room, width)
            slot.keys.extend(mx.zeros(shape, self._dtype) for _ in range(self._num_layers))
            slot.values.extend(mx.zeros(shape, self._dtype) for _ in range(self._num_layers))
            return
        empty = mx.zeros((batch, heads, room, width), self._dtype)
        for buffers in (slot.keys, slot.values):
            buffers[:] = [mx.concatenate([buffer, empty], axis=2) for buffer in buffers]


class _Slot:
    """One sequence's arrays; [1, H_kv, capacity, D] for each layer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.length = 0
        self.open_step: Step | None = None
        self.keys: list[mx.array] = []
        self.values: list[mx.array] = []

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def check(self, row: RowPlan) -> None:
        if self.open_step is not None:
            raise PlanError(self.index, "a step is open")
        if row.start != self.length:
            raise PlanError(self.index, f"the step starts at {row.start} and the slot holds {self.length} tokens")
        if row.num_tokens == 0:
            raise PlanError(self.index, "the step has no tokens")
        if any(not 0 <= offset < row.num_tokens for offset in row.logits_at):
            raise PlanError(self.index, "logits are asked for outside the step")

    def commit(self, accepted: int) -> None:
        if self.open_step is None:
            raise CommitError(self.index, "no step is open")
        num_tokens = self.open_step.plan.rows[0].num_tokens
        if not 0 <= accepted <= num_tokens:
            raise CommitError(self.index, f"{accepted} tokens of a step of {num_tokens} are accepted")
        self.length += accepted
        self.open_step = None

    def clear(self) -> None:
        self.length = 0
        self.open_step = None
        self.keys.clear()
        self.values.clear()


def _tokens_of(row: RowPlan, device_tokens: mx.array | None) -> mx.array:
    """Return int32 [1, T]."""
    if row.token_ids is not None:
        return mx.array([row.token_ids], dtype=mx.int32)
    if device_tokens is None or device_tokens.size != 1:
        raise PlanError(row.slot, "the step needs one token from the device")
    return mx.reshape(device_tokens, (1, 1)).astype(mx.int32)


def _share(buffers: list[mx.array] | tuple[mx.array, ...]) -> list[mx.array]:
    """Return other array objects on the same memory.

    Writing to an array object by index changes what that object stands for, so two owners need two objects.
    """
    return [buffer[...] for buffer in buffers]
