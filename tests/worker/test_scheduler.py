import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from models.step import RowPlan
from worker.scheduler import REFERENCE_CHUNKING, Chunking, Scheduler, SlotError, TextPlan
from worker.sequence import SamplingSettings, Sequence, State, StoppingSettings, TextRequest


def sequence(request_id: str, prompt_tokens: int = 4, priority: int = 0) -> Sequence:
    request = TextRequest(
        request_id,
        tuple(range(prompt_tokens)),
        SamplingSettings(),
        StoppingSettings(100),
        priority=priority,
        key=request_id,
    )
    return Sequence(request, lambda _: b"", 10_000)


def nobody_is_behind(_: Sequence) -> bool:
    return False


def carry_out(plan: TextPlan) -> None:
    """Do what a workload does with a plan, without a model."""
    if plan.prefill is None:
        return
    subject = plan.prefill.sequence
    subject.prefilled += plan.prefill.row.num_tokens
    if subject.prefilled == len(subject.request.prompt_ids):
        subject.move(State.DECODING)


def step(scheduler: Scheduler) -> TextPlan | None:
    plan = scheduler.plan(nobody_is_behind)
    if plan is not None:
        carry_out(plan)
    return plan


def served(scheduler: Scheduler, count: int) -> list[str]:
    """Return whose prompt moved in each of the next steps."""
    plans = [step(scheduler) for _ in range(count)]
    return [plan.prefill.sequence.request_id for plan in plans if plan is not None and plan.prefill is not None]


def test_there_is_nothing_to_do_without_sequences():
    assert Scheduler(2, Chunking(4)).plan(nobody_is_behind) is None


def test_a_prompt_is_cut_and_only_its_end_needs_logits():
    scheduler = Scheduler(1, Chunking(3))
    scheduler.add(sequence("a", prompt_tokens=5))
    rows = [
        plan.prefill.row for plan in (step(scheduler), step(scheduler)) if plan is not None and plan.prefill is not None
    ]
    assert rows == [RowPlan(0, (0, 1, 2), 0, ()), RowPlan(0, (3, 4), 3, (1,))]


@pytest.mark.parametrize(("num_tokens", "sizes"), [(1, [1]), (2, [1, 1]), (2049, [2048, 1]), (2050, [2048, 1, 1])])
def test_the_reference_path_takes_the_last_token_apart(num_tokens: int, sizes: list[int]):
    found: list[int] = []
    while sum(found) < num_tokens:
        found.append(REFERENCE_CHUNKING.next_tokens(num_tokens, sum(found)))
    assert found == sizes


def test_a_decoding_row_steps_while_another_prompt_is_computed():
    scheduler = Scheduler(2, Chunking(4))
    scheduler.add(sequence("a"))
    step(scheduler)
    scheduler.add(sequence("b", prompt_tokens=8))
    plan = step(scheduler)
    assert plan is not None
    assert plan.keys == ("a", "b")


def test_prompts_take_turns():
    scheduler = Scheduler(2, Chunking(1))
    scheduler.add(sequence("a", prompt_tokens=3))
    scheduler.add(sequence("b", prompt_tokens=3))
    assert served(scheduler, 6) == ["a", "b", "a", "b", "a", "b"]


def test_the_higher_priority_gets_the_slot_first():
    scheduler = Scheduler(1, Chunking(9))
    for request_id, priority in (("a", 0), ("b", -5), ("c", 7), ("d", 7)):
        scheduler.add(sequence(request_id, priority=priority))
    order: list[str] = []
    while (plan := step(scheduler)) is not None and plan.prefill is not None:
        order.append(plan.prefill.sequence.request_id)
        scheduler.remove(plan.prefill.sequence)
    assert order == ["c", "d", "a", "b"]


def test_a_row_whose_reader_is_behind_pauses_and_goes_on():
    scheduler = Scheduler(1, Chunking(9))
    subject = sequence("a")
    scheduler.add(subject)
    step(scheduler)
    assert scheduler.plan(lambda _: True) is None
    assert subject.state is State.PAUSED
    plan = step(scheduler)
    assert plan is not None
    assert plan.decode == (subject,)


def test_a_waiting_sequence_can_be_removed():
    scheduler = Scheduler(1, Chunking(9))
    first, second = sequence("a"), sequence("b")
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler)
    scheduler.remove(second)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 0)


def test_a_slot_that_was_not_out_is_not_taken_back():
    scheduler = Scheduler(2, Chunking(9))
    subject = sequence("a")
    scheduler.add(subject)
    step(scheduler)
    subject.slot = 1
    with pytest.raises(SlotError):
        scheduler.remove(subject)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 8))
def test_within_a_priority_prompts_begin_in_the_order_they_came(lengths: list[int], num_slots: int, chunk_tokens: int):
    scheduler = Scheduler(num_slots, Chunking(chunk_tokens))
    for index, length in enumerate(lengths):
        scheduler.add(sequence(str(index), prompt_tokens=length))
    begun: list[str] = []
    while (plan := step(scheduler)) is not None:
        if plan.prefill is not None and plan.prefill.row.start == 0:
            begun.append(plan.prefill.sequence.request_id)
        for ended in plan.decode:
            scheduler.remove(ended)
    assert begun == [str(index) for index in range(len(lengths))]


class Life(RuleBasedStateMachine):
    """Sequences come, run, pause and go in any order."""

    NUM_SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(self.NUM_SLOTS, Chunking(2))
        self.present: list[Sequence] = []
        self.unserved: dict[str, int] = {}
        self.num_added = 0

    @rule(prompt_tokens=st.integers(1, 9), priority=st.integers(-2, 2))
    def add(self, prompt_tokens: int, priority: int) -> None:
        self.num_added += 1
        subject = sequence(str(self.num_added), prompt_tokens, priority)
        self.present.append(subject)
        self.scheduler.add(subject)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(self.present))
        self.present.remove(subject)
        self.unserved.pop(subject.request_id, None)
        self.scheduler.remove(subject)

    @rule(behind=st.sets(st.integers(1, 20), max_size=3))
    def run_step(self, behind: set[int]) -> None:
        plan = self.scheduler.plan(lambda subject: int(subject.request_id) in behind)
        moved = set(plan.keys) if plan is not None else set[str]()
        if plan is not None:
            carry_out(plan)
        for subject in self.present:
            waits = subject.slot is not None and subject.state is not State.PAUSED and subject.request_id not in moved
            self.unserved[subject.request_id] = self.unserved.get(subject.request_id, 0) + 1 if waits else 0

    @invariant()
    def every_slot_is_held_once_or_free(self) -> None:
        held = [subject.slot for subject in self.present if subject.slot is not None]
        assert len(held) == len(set(held)) == self.scheduler.num_running <= self.NUM_SLOTS
        assert all(slot in range(self.NUM_SLOTS) for slot in held)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.present)

    @invariant()
    def no_row_starves(self) -> None:
        assert all(count < self.NUM_SLOTS for count in self.unserved.values())


TestLife = Life.TestCase
