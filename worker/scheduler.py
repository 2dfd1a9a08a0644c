"""Who runs in the next tick: admission to cache slots, prompt chunks and decoding rows; plain Python.

The policy and its bounds; B is `Chunking.chunk_tokens`:

* Decoding: a row whose reader keeps up decodes in every tick, so at most B prompt tokens lie between two of its steps,
  and no more than what the caller of `plan` allows, who knows how long they take (`worker.pace`).
* Prompts with a slot take turns (`worker.chunks`): a turn comes within as many ticks as prompts are under way, and a
  prompt of T tokens is computed within num_slots * ceil(2 * T / B) ticks; one more turn where the last token is apart.
  Those whose tokens fit in half of B together with all that are shorter are computed in the next tick, as far as
  `Chunking.max_rows` allows.
* Waiting (`worker.waiting`): by priority, then first come, first served; the one that came first of all is overtaken
  at most 16 times in a row.
* Memory: where there is none for the one that is next, nobody else starts either, so small requests that would fit
  never keep a large one waiting. The rows that run go on, and what they give back is for that one.
* Followers get a slot once their leader's prompt is computed or the leader has ended, and hold up nobody before.
* A row whose reader is behind pauses and keeps its slot.
"""

from collections.abc import Callable
from dataclasses import dataclass

from worker.chunks import REFERENCE_CHUNKING, Chunk, Chunking, PromptTurns
from worker.sequence import Sequence, State
from worker.waiting import WaitingLine

__all__ = ["REFERENCE_CHUNKING", "Chunk", "Chunking", "Scheduler", "SlotError", "StartError", "TextPlan"]


class SlotError(RuntimeError):
    """Raised when a slot is given back that is not out: a broken invariant."""


class StartError(RuntimeError):
    """Raised when a start leaves no token of the prompt to compute: a broken invariant."""


@dataclass(frozen=True, slots=True)
class TextPlan:
    """One tick: one step for all decoding rows, then one for the chunks of all prompts that move."""

    decode: tuple[Sequence, ...]
    prefill: tuple[Chunk, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Whose work it is: each request once."""
        sequences = [*self.decode, *(chunk.sequence for chunk in self.prefill)]
        return tuple(dict.fromkeys(sequence.key for sequence in sequences))


class Scheduler:
    """Holds all sequences of one model between their admission and their end.

    Args:
        num_slots: how many may hold a cache slot.
        chunking: how prompts are cut.
    """

    def __init__(self, num_slots: int, chunking: Chunking) -> None:
        self._free_slots = list(reversed(range(num_slots)))
        self._num_slots = num_slots
        self._waiting = WaitingLine()
        self._running: list[Sequence] = []
        self._turns = PromptTurns(chunking)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def is_decoding(self) -> bool:
        """Whether there is a sequence behind its prompt."""
        return any(sequence.state is State.DECODING for sequence in self._running)

    def waiting_places(self) -> dict[Sequence, int]:
        """Return for each sequence that waits how many are before it."""
        return self._waiting.places()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its priority; followers of a leader come right after it."""
        self._waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot is free again."""
        sequence.move(State.ENDED)
        if sequence.slot is None:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        slot, sequence.slot = sequence.slot, None
        if slot in self._free_slots or not 0 <= slot < self._num_slots:
            raise SlotError(f"slot {slot} was not out")
        self._free_slots.append(slot)

    def plan(
        self,
        is_behind: Callable[[Sequence], bool],
        start: Callable[[Sequence], bool],
        busy_tokens: int | None = None,
        idle_tokens: int | None = None,
    ) -> TextPlan | None:
        """Decide what the next tick computes.

        Args:
            is_behind: whether the reader of a sequence that runs or is paused should not get more for now.
            start: makes room for a sequence that was given a slot, and sets `prefilled` where the start of the prompt
                is there already, its last token never. False: there is no memory for now, and nothing was taken; the
                sequence gives the slot back and is asked for again in the next tick. It must not be False for ever
                once nothing else runs: nobody else would start.
            busy_tokens: of prompts in this tick where rows decode, at least 1; None: as many as without them.
            idle_tokens: of prompts in this tick where none decode, at least 1; None: as many as may be.

        Returns:
            The plan; None when there is nothing to compute.

        Raises:
            StartError: `start` left nothing of the prompt to compute.
        """
        self._fill_slots(start)
        decode = tuple(sequence for sequence in self._running if self._decodes(sequence, is_behind))
        prefill = self._turns.next_chunks(busy_tokens if decode else idle_tokens)
        return TextPlan(decode, prefill) if decode or prefill else None

    def _fill_slots(self, start: Callable[[Sequence], bool]) -> None:
        while self._free_slots and (sequence := self._waiting.next()) is not None:
            if not self._starts(sequence, start):
                return
            self._waiting.start(sequence)
            sequence.move(State.PREFILLING)
            self._running.append(sequence)
            self._turns.join(sequence)
            if sequence.prefilled >= len(sequence.request.prompt_ids):
                raise StartError(f"request {sequence.request_id} has no prompt token left to compute")

    def _starts(self, sequence: Sequence, start: Callable[[Sequence], bool]) -> bool:
        """Give a free slot to a sequence; take it back where it cannot start, also where that raises."""
        slot = sequence.slot = self._free_slots.pop()
        has_started = False
        try:
            has_started = start(sequence)
        finally:
            if not has_started:
                sequence.slot = None
                self._free_slots.append(slot)
        return has_started

    def _decodes(self, sequence: Sequence, is_behind: Callable[[Sequence], bool]) -> bool:
        if sequence.state not in {State.DECODING, State.PAUSED}:
            return False
        wanted = State.PAUSED if is_behind(sequence) else State.DECODING
        if sequence.state is not wanted:
            sequence.move(wanted)
        return wanted is State.DECODING
