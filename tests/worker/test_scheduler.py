import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.worker.scheduler_life import Life, PromiseBrokenError, carry_out, follower, sequence
from worker.chunks import PromptTurns
from worker.scheduler import Chunk, Chunking, Scheduler, SlotError, StartError, TextPlan
from worker.sequence import Sequence, State
from worker.waiting import WaitingLine

SEEDS = range(60)


def nobody_is_behind(_: Sequence) -> bool:
    return False


def there_is_memory(_: Sequence) -> bool:
    return True


def step(scheduler: Scheduler, start: Callable[[Sequence], bool] = there_is_memory) -> TextPlan:
    plan = scheduler.plan(nobody_is_behind, start) or TextPlan((), ())
    carry_out(plan)
    return plan


def scheduler_with(num_slots: int, chunk_tokens: int, *sequences: Sequence) -> Scheduler:
    scheduler = Scheduler(num_slots, Chunking(chunk_tokens))
    for subject in sequences:
        scheduler.add(subject)
    return scheduler


def names(plan: TextPlan) -> list[str]:
    return [chunk.sequence.request_id for chunk in plan.prefill]


def test_there_is_nothing_to_do_without_sequences():
    assert Scheduler(2, Chunking(4)).plan(nobody_is_behind, there_is_memory) is None


def test_all_rows_decode_while_another_prompt_is_computed():
    first, second = sequence("a"), sequence("b")
    scheduler = scheduler_with(3, 8, first, second)
    assert names(step(scheduler)) == ["b", "a"]
    scheduler.add(sequence("c", prompt_tokens=20))
    plan = step(scheduler)
    assert plan.decode == (first, second)
    assert names(plan) == ["c"]


def test_a_request_with_several_outputs_is_named_once():
    leader = sequence("a")
    scheduler = scheduler_with(2, 8, leader, follower(leader))
    step(scheduler)
    plan = step(scheduler)
    assert (len(plan.decode), len(plan.prefill), plan.keys) == (1, 1, ("a",))


def test_a_row_whose_reader_is_behind_pauses_and_keeps_its_slot():
    subject = sequence("a")
    scheduler = scheduler_with(1, 9, subject, sequence("b"))
    step(scheduler)
    assert scheduler.plan(lambda _: True, there_is_memory) is None
    assert (subject.state, subject.slot) == (State.PAUSED, 0)
    assert step(scheduler).decode == (subject,)


def test_a_prompt_goes_on_after_the_tokens_that_were_there_already():
    subject = sequence("a", prompt_tokens=9)

    def adopt(started: Sequence) -> bool:
        started.prefilled = 8
        return True

    row = step(scheduler_with(1, 64, subject), adopt).prefill[0].row
    assert (row.start, row.token_ids, row.logits_at) == (8, (8,), (0,))


def test_a_start_that_leaves_nothing_to_compute_is_refused_and_its_slot_comes_back():
    subject = sequence("a")
    scheduler = scheduler_with(1, 64, subject)

    def adopt_all(started: Sequence) -> bool:
        started.prefilled = len(started.request.prompt_ids)
        return True

    with pytest.raises(StartError):
        scheduler.plan(nobody_is_behind, adopt_all)
    scheduler.remove(subject)
    scheduler.add(sequence("b"))
    assert names(step(scheduler)) == ["b"]


def test_small_requests_do_not_pass_one_for_which_there_is_no_memory():
    big, small = sequence("big", prompt_tokens=50), sequence("small")
    scheduler = scheduler_with(2, 64, big, small)
    asked: list[str] = []

    def refuse_big(subject: Sequence) -> bool:
        asked.append(subject.request_id)
        return subject is not big

    assert [names(step(scheduler, refuse_big)) for _ in range(2)] == [[], []]
    assert asked == ["big", "big"]
    assert (big.slot, big.state, scheduler.waiting_places().get(big)) == (None, State.QUEUED, 0)
    assert names(step(scheduler)) == ["small", "big"]


def test_a_start_that_raises_leaves_the_sequence_in_the_line():
    subject = sequence("a")
    scheduler = scheduler_with(1, 64, subject)

    def fail(_: Sequence) -> bool:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        scheduler.plan(nobody_is_behind, fail)
    assert (subject.slot, scheduler.waiting_places().get(subject)) == (None, 0)
    assert names(step(scheduler)) == ["a"]


def test_the_place_of_who_runs_is_none():
    first, second = sequence("a"), sequence("b")
    scheduler = scheduler_with(1, 64, first, second)
    step(scheduler)
    assert scheduler.waiting_places() == {second: 0}


def test_a_waiting_sequence_can_be_removed():
    first, second = sequence("a"), sequence("b")
    scheduler = scheduler_with(1, 9, first, second)
    step(scheduler)
    scheduler.remove(second)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 0)


def test_a_slot_that_was_not_out_is_not_taken_back():
    subject = sequence("a")
    scheduler = scheduler_with(2, 9, subject)
    step(scheduler)
    subject.slot = 1
    with pytest.raises(SlotError):
        scheduler.remove(subject)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_promised_holds_in_a_random_life(seed: int):
    Life(seed).run()


class TurnsOfTheSame(PromptTurns):
    def next_chunks(self, limit: int | None = None) -> tuple[Chunk, ...]:
        chunks = super().next_chunks(limit)
        self._order = self._order[-1:] + self._order[:-1]
        return chunks


class TurnsOfTheShortest(PromptTurns):
    def next_chunks(self, limit: int | None = None) -> tuple[Chunk, ...]:
        self._order.sort(key=lambda subject: len(subject.request.prompt_ids))
        return super().next_chunks(limit)


class TurnsOnly(PromptTurns):
    def _short(self, budget: int, max_rows: int) -> dict[Sequence, int]:
        return {}


class BudgetForEach(PromptTurns):
    def _shares(self, budget: int) -> dict[Sequence, int]:
        return {subject: self._wanted(subject) for subject in self._order}


class LastComeFirst(WaitingLine):
    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        self._num_added -= 2


class PriorityOnly(WaitingLine):
    def start(self, sequence: Sequence) -> None:
        self.remove(sequence)


class OldestOnly(WaitingLine):
    def start(self, sequence: Sequence) -> None:
        super().start(sequence)
        self._num_overtakes = 99


class FollowersAtOnce(WaitingLine):
    def next(self) -> Sequence | None:
        return self._entries[0].sequence if self._entries else None


class FollowersHoldUp(WaitingLine):
    def next(self) -> Sequence | None:
        subject = super().next()
        return subject if self._entries and subject is self._entries[0].sequence else None


class SmallOnesPass(Scheduler):
    def _fill_slots(self, start: Callable[[Sequence], bool]) -> None:
        super()._fill_slots(start)
        refused = self._waiting.next()
        if self._free_slots and refused is not None:
            self._waiting.remove(refused)
            super()._fill_slots(start)
            self._waiting.add(refused)


class NeverPauses(Scheduler):
    def _decodes(self, sequence: Sequence, is_behind: Callable[[Sequence], bool]) -> bool:
        return super()._decodes(sequence, nobody_is_behind)


class DecodesOrComputes(Scheduler):
    def plan(
        self,
        is_behind: Callable[[Sequence], bool],
        start: Callable[[Sequence], bool],
        busy_tokens: int | None = None,
        idle_tokens: int | None = None,
    ) -> TextPlan | None:
        plan = super().plan(is_behind, start, busy_tokens, idle_tokens)
        return replace(plan, decode=()) if plan is not None and plan.prefill else plan


class SkipsAToken(Scheduler):
    def plan(
        self,
        is_behind: Callable[[Sequence], bool],
        start: Callable[[Sequence], bool],
        busy_tokens: int | None = None,
        idle_tokens: int | None = None,
    ) -> TextPlan | None:
        plan = super().plan(is_behind, start, busy_tokens, idle_tokens)
        if plan is None:
            return None
        late = (Chunk(chunk.sequence, replace(chunk.row, start=chunk.row.start + 1)) for chunk in plan.prefill)
        return replace(plan, prefill=tuple(late))


class SlotTwice(Scheduler):
    def remove(self, sequence: Sequence) -> None:
        slot = sequence.slot
        super().remove(sequence)
        if slot is not None:
            self._free_slots.append(slot)


class SlotLost(Scheduler):
    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self._free_slots = self._free_slots[:1]


def with_turns(kind: type[PromptTurns]) -> Callable[[int, Chunking], Scheduler]:
    def make(num_slots: int, chunking: Chunking) -> Scheduler:
        scheduler = Scheduler(num_slots, chunking)
        scheduler._turns = kind(chunking)
        return scheduler

    return make


def with_line(kind: type[WaitingLine]) -> Callable[[int, Chunking], Scheduler]:
    def make(num_slots: int, chunking: Chunking) -> Scheduler:
        scheduler = Scheduler(num_slots, chunking)
        scheduler._waiting = kind()
        return scheduler

    return make


DEFECTS = {
    "turns of the same": (with_turns(TurnsOfTheSame), "waits too long for its turn"),
    "turns of the shortest": (with_turns(TurnsOfTheShortest), "waits too long for its turn"),
    "turns only": (with_turns(TurnsOnly), "a short prompt is held up"),
    "a budget for each": (with_turns(BudgetForEach), "over the budget"),
    "last come first": (with_line(LastComeFirst), "not first come, first served"),
    "priority only": (with_line(PriorityOnly), "overtaken too often"),
    "oldest only": (with_line(OldestOnly), "a lower priority comes too soon"),
    "followers at once": (with_line(FollowersAtOnce), "a follower starts before"),
    "followers hold up": (with_line(FollowersHoldUp), "a slot is free"),
    "small ones pass": (SmallOnesPass, "behind another for which there is no memory"),
    "never pauses": (NeverPauses, "another row decodes"),
    "decodes or computes": (DecodesOrComputes, "another row decodes, or one does not"),
    "skips a token": (SkipsAToken, "another token than the next"),
    "slot twice": (SlotTwice, "a slot is held twice"),
    "slot lost": (SlotLost, "a slot is free"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_random_life_shows_each_defect_and_says_its_seed(name: str):
    make, promise = DEFECTS[name]
    found = [message for seed in SEEDS if (message := failure(Life(seed, make)))]
    assert any(promise in message for message in found), found[:3]
    seed = re.match(r"seed (\d+), ", found[0])
    assert seed is not None
    assert failure(Life(int(seed[1]), make)) == found[0]


def failure(life: Life) -> str | None:
    try:
        life.run()
    except PromiseBrokenError as error:
        return str(error)
    return None


def test_prompts_take_what_they_may_while_rows_decode():
    scheduler = Scheduler(2, Chunking(64))
    first, second = sequence("r1", 3), sequence("r2", 100)
    for subject in (first, second):
        scheduler.add(subject)

    def sizes(busy_tokens: int | None) -> list[int]:
        plan = scheduler.plan(nobody_is_behind, there_is_memory, busy_tokens)
        assert plan is not None
        for chunk in plan.prefill:
            chunk.sequence.prefilled += chunk.row.num_tokens
        return [chunk.row.num_tokens for chunk in plan.prefill]

    assert sizes(10) == [3, 61], "nothing decodes yet"
    first.move(State.DECODING)
    assert [sizes(10), sizes(None)] == [[10], [29]]
