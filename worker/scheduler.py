"""Who runs in the next step: admission to cache slots, prompt chunks and decoding rows; plain Python.

Priority decides who gets a slot first, and among equals the one who came first. Those who hold a slot are all equal:
each decodes in every step, and prompts take turns, one chunk a step, so nobody starves behind a long prompt.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from models.step import RowPlan
from worker.sequence import Sequence, State

REFERENCE_CHUNK_TOKENS = 2048


class SlotError(RuntimeError):
    """Raised when a slot is given back that is not out: a broken invariant."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a prompt is cut.

    Attributes:
        chunk_tokens: at most so many tokens a step.
        is_last_token_apart: the last token of the prompt is a step of its own, as on the reference path.
    """

    chunk_tokens: int
    is_last_token_apart: bool = False

    def next_tokens(self, num_tokens: int, start: int) -> int:
        """Return how many tokens of a prompt of `num_tokens` come next, with `start` of them done."""
        end = num_tokens - 1 if self.is_last_token_apart and start < num_tokens - 1 else num_tokens
        return min(self.chunk_tokens, end - start)


REFERENCE_CHUNKING = Chunking(REFERENCE_CHUNK_TOKENS, is_last_token_apart=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next part of a prompt."""

    sequence: Sequence
    row: RowPlan


@dataclass(frozen=True, slots=True)
class TextPlan:
    """One tick: a step for each decoding row, then at most one chunk of one prompt."""

    decode: tuple[Sequence, ...]
    prefill: Chunk | None

    @property
    def keys(self) -> tuple[str, ...]:
        """Whose work it is."""
        keys = [sequence.key for sequence in self.decode]
        return tuple(keys) if self.prefill is None else (*keys, self.prefill.sequence.key)


class Scheduler:
    """Holds all sequences of one model between their admission and their end.

    Args:
        num_slots: how many may hold a cache slot.
        chunking: how prompts are cut.
    """

    def __init__(self, num_slots: int, chunking: Chunking) -> None:
        self._chunking = chunking
        self._free_slots = list(reversed(range(num_slots)))
        self._num_slots = num_slots
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._running: list[Sequence] = []
        self._turns: deque[Sequence] = deque()
        self._num_added = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its priority."""
        self._num_added += 1
        insort(self._waiting, (-sequence.request.priority, self._num_added, sequence), key=lambda entry: entry[:2])

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot is free again."""
        sequence.move(State.ENDED)
        if sequence.slot is None:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            return
        self._running.remove(sequence)
        slot, sequence.slot = sequence.slot, None
        if slot in self._free_slots or not 0 <= slot < self._num_slots:
            raise SlotError(f"slot {slot} was not out")
        self._free_slots.append(slot)

    def plan(self, is_behind: Callable[[Sequence], bool]) -> TextPlan | None:
        """Decide what the next tick computes.

        Args:
            is_behind: whether the reader of a sequence that runs or is paused should not get more for now.

        Returns:
            The plan; None when there is nothing to compute.
        """
        self._fill_slots()
        decode = tuple(sequence for sequence in self._running if self._decodes(sequence, is_behind))
        prefill = self._next_chunk()
        return TextPlan(decode, prefill) if decode or prefill else None

    def _fill_slots(self) -> None:
        while self._free_slots and self._waiting:
            _, _, sequence = self._waiting.pop(0)
            sequence.slot = self._free_slots.pop()
            sequence.move(State.PREFILLING)
            self._running.append(sequence)
            self._turns.append(sequence)

    def _decodes(self, sequence: Sequence, is_behind: Callable[[Sequence], bool]) -> bool:
        if sequence.state not in {State.DECODING, State.PAUSED}:
            return False
        wanted = State.PAUSED if is_behind(sequence) else State.DECODING
        if sequence.state is not wanted:
            sequence.move(wanted)
        return wanted is State.DECODING

    def _next_chunk(self) -> Chunk | None:
        while self._turns and self._turns[0].state is not State.PREFILLING:
            self._turns.popleft()
        if not self._turns:
            return None
        sequence = self._turns[0]
        self._turns.rotate(-1)
        prompt, start = sequence.request.prompt_ids, sequence.prefilled
        num_tokens = self._chunking.next_tokens(len(prompt), start)
        is_last = start + num_tokens == len(prompt)
        logits_at = (num_tokens - 1,) if is_last else ()
        row = RowPlan(_slot_of(sequence), prompt[start : start + num_tokens], start, logits_at)
        return Chunk(sequence, row)


def _slot_of(sequence: Sequence) -> int:
    if sequence.slot is None:
        raise SlotError(f"request {sequence.request_id} runs without a slot")
    return sequence.slot
