"""A random life of a scheduler, checked from outside in every tick against what its docstring promises."""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from worker.detokenizer import Detokenizer
from worker.scheduler import Chunk, Chunking, Scheduler, TextPlan
from worker.sequence import SamplingSettings, Sequence, State, StoppingSettings, TextRequest
from worker.waiting import MAX_OVERTAKES

NUM_TICKS = 120
MAX_PRESENT = 30


class PromiseBrokenError(AssertionError):
    """Raised with the seed that shows it."""


def sequence(request_id: str, prompt_tokens: int = 4, priority: int = 0) -> Sequence:
    request = TextRequest(
        request_id,
        tuple(range(prompt_tokens)),
        SamplingSettings(),
        StoppingSettings(100),
        priority=priority,
        key=request_id,
    )
    return Sequence(request, Detokenizer(lambda _: b""), 100_000)


def follower(leader: Sequence) -> Sequence:
    return Sequence(leader.request, Detokenizer(lambda _: b""), 100_000, index=1, leader=leader)


def rest(subject: Sequence) -> int:
    return len(subject.request.prompt_ids) - subject.prefilled


def carry_out(plan: TextPlan) -> None:
    """Do what a workload does with a plan, without a model."""
    for chunk in plan.prefill:
        chunk.sequence.prefilled += chunk.row.num_tokens
        if rest(chunk.sequence) == 0:
            chunk.sequence.move(State.DECODING)


@dataclass
class Record:
    """What is known of one sequence.

    Attributes:
        number: counts those that came.
        overtakes: starts of later ones that it saw while it could have started itself.
        max_idle: it may spend one tick less without a token of its prompt.
        prefill_ticks: since it has a slot.
    """

    number: int
    max_overtakes: int
    overtakes: int = 0
    idle: int = 0
    max_idle: int = 0
    prefill_ticks: int = 0
    max_prefill_ticks: int = 0


class Life:
    """Sequences come, lead others, run, pause, end and are cancelled, as the seed decides.

    Args:
        seed: decides everything.
        make: makes the scheduler.
    """

    def __init__(self, seed: int, make: Callable[[int, Chunking], Scheduler] = Scheduler) -> None:
        self.seed = seed
        dice = self.dice = random.Random(seed)
        self.num_slots = dice.randint(1, 6)
        self.chunking = Chunking(dice.choice([1, 2, 7, 16, 64]), dice.choice([None, 1, 2, 3]), dice.random() < 0.3)
        self.scheduler = make(self.num_slots, self.chunking)
        self.memory = self.free_memory = dice.choice([40, 100, 1000])
        self.present: dict[Sequence, Record] = {}
        self.num_added = self.num_ticks = 0
        self.starts_by_priority = 0  # since the last that was not
        self.has_refused = False

    def run(self) -> None:
        """Live a while, then let everyone come to an end.

        Raises:
            PromiseBrokenError: with the seed and the tick.
        """
        try:
            for _ in range(NUM_TICKS):
                self.come_and_go()
                self.tick({subject for subject in self.present if self.dice.random() < 0.1}, end_chance=0.4)
            max_ticks = sum(rest(subject) + 2 for subject in self.present)  # one token or one end a tick
            for _ in range(max_ticks):
                self.tick(set(), end_chance=1)
            assert not self.present, "someone never ends"
        except Exception as error:
            raise PromiseBrokenError(f"seed {self.seed}, tick {self.num_ticks}: {error!r}") from error

    def come_and_go(self) -> None:
        while self.dice.random() < 0.55 and len(self.present) < MAX_PRESENT:
            longest = self.dice.choice([3, 20, min(100, self.memory)])
            length, priority = self.dice.randint(1, longest), self.dice.choice([0, 0, 0, 5, 5, -128, 127])
            leader = sequence(str(self.num_added), length, priority)
            self.come(leader)
            for _ in range(self.dice.choice([0, 0, 0, 1, 3])):
                self.come(follower(leader))
        if self.present and self.dice.random() < 0.1:
            self.end(self.dice.choice(list(self.present)))

    def come(self, subject: Sequence) -> None:
        self.num_added += 1
        self.present[subject] = Record(self.num_added, (len(self.waiting()) + 1) * MAX_OVERTAKES)
        self.scheduler.add(subject)

    def end(self, subject: Sequence) -> None:
        if subject.slot is not None:
            self.free_memory += len(subject.request.prompt_ids)
        del self.present[subject]
        self.scheduler.remove(subject)
        assert subject.slot is None

    def tick(self, behind: Collection[Sequence], end_chance: float) -> None:
        rows = {subject for subject in self.present if subject.state in {State.DECODING, State.PAUSED}}
        self.num_ticks += 1
        self.has_refused = False
        plan = self.scheduler.plan(behind.__contains__, self.start) or TextPlan((), ())
        assert len(plan.decode) == len(set(plan.decode)), "a row decodes twice"
        assert set(plan.decode) == rows.difference(behind), "another row decodes, or one does not"
        assert all(row.state is (State.PAUSED if row in behind else State.DECODING) for row in rows)
        self.check_slots()
        self.check_places()
        self.check_chunks(plan.prefill)
        self.check_turns(plan.prefill)
        carry_out(plan)
        for subject in plan.decode:
            if self.dice.random() < end_chance:
                self.end(subject)

    def start(self, subject: Sequence) -> bool:
        assert not self.has_refused, "one starts behind another for which there is no memory"
        assert subject.slot in range(self.num_slots)
        assert can_start(subject), "a follower starts before its leader's prompt is computed"
        needed = len(subject.request.prompt_ids)
        self.has_refused = needed > self.free_memory
        if self.has_refused:
            return False
        self.free_memory -= needed
        if self.dice.random() < 0.3:
            subject.prefilled = self.dice.randrange(needed)
        record = self.present[subject]
        budget, is_apart = self.chunking.chunk_tokens, self.chunking.is_last_token_apart
        record.max_prefill_ticks = self.num_slots * (math.ceil(2 * rest(subject) / budget) + is_apart)
        self.check_order(subject, record)
        return True

    def check_order(self, subject: Sequence, record: Record) -> None:
        others = {other: self.present[other] for other in self.waiting() if can_start(other)}
        earlier = {other: found for other, found in others.items() if found.number < record.number}
        priority = subject.request.priority
        assert all(other.request.priority != priority for other in earlier), "not first come, first served"
        if any(other.request.priority > priority for other in others):
            assert self.starts_by_priority >= MAX_OVERTAKES, "a lower priority comes too soon"
            self.starts_by_priority = 0
        else:
            self.starts_by_priority += 1
        for found in earlier.values():
            found.overtakes += 1
            assert found.overtakes <= found.max_overtakes, "one is overtaken too often"

    def check_slots(self) -> None:
        slots = [subject.slot for subject in self.present if subject.slot is not None]
        assert len(slots) == len(set(slots)), "a slot is held twice"
        assert len(slots) == self.scheduler.num_running <= self.num_slots
        assert self.scheduler.num_waiting == len(self.waiting())
        is_idle = len(slots) < self.num_slots and any(can_start(subject) for subject in self.waiting())
        assert self.has_refused or not is_idle, "a slot is free that someone waits for"

    def check_places(self) -> None:
        in_order = sorted(self.waiting(), key=lambda one: (-one.request.priority, self.present[one].number))
        assert list(self.scheduler.waiting_places().items()) == [(each, place) for place, each in enumerate(in_order)]

    def check_chunks(self, chunks: tuple[Chunk, ...]) -> None:
        assert sum(chunk.row.num_tokens for chunk in chunks) <= self.chunking.chunk_tokens, "over the budget"
        assert len(chunks) <= (self.chunking.max_rows or len(chunks))
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            row, prompt = chunk.row, chunk.sequence.request.prompt_ids
            end = row.start + row.num_tokens
            assert row.slot == chunk.sequence.slot
            assert row.start == chunk.sequence.prefilled, "another token than the next"
            assert row.token_ids == prompt[row.start : end] != ()
            assert row.logits_at == ((row.num_tokens - 1,) if end == len(prompt) else ())
            is_last_alone = end < len(prompt) or row.num_tokens == 1
            assert is_last_alone or not self.chunking.is_last_token_apart

    def check_turns(self, chunks: tuple[Chunk, ...]) -> None:
        under_way = [subject for subject in self.present if subject.state is State.PREFILLING]
        moved = {chunk.sequence: chunk.row.num_tokens for chunk in chunks}
        assert moved.keys() <= set(under_way)
        for subject in under_way:
            record = self.present[subject]
            record.max_idle = record.max_idle if record.idle else len(under_way)
            record.idle = 0 if subject in moved else record.idle + 1
            record.prefill_ticks += 1
            assert record.idle < record.max_idle, "a prompt waits too long for its turn"
            assert record.prefill_ticks <= record.max_prefill_ticks, "a prompt takes too long"
            if self.is_short(subject, under_way):
                assert moved.get(subject) == rest(subject), "a short prompt is held up"

    def is_short(self, subject: Sequence, under_way: list[Sequence]) -> bool:
        """Whether a prompt must be computed at once."""
        shorter = [rest(other) for other in under_way if rest(other) <= rest(subject)]
        max_rows = self.chunking.max_rows or len(under_way) + 1
        fits = sum(shorter) <= self.chunking.chunk_tokens // 2 and len(shorter) < max_rows
        return fits and not self.chunking.is_last_token_apart

    def waiting(self) -> list[Sequence]:
        return [subject for subject in self.present if subject.slot is None]


def can_start(subject: Sequence) -> bool:
    return subject.leader is None or subject.leader.state is State.ENDED or rest(subject.leader) == 0
