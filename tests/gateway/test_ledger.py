"""Who gets memory, who waits, and who goes: never more than there is, whatever happens."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger import Conditions, Ledger, OverBudget, Resident, Step, victims_among

CALM = Conditions()
FULL = Conditions(excess_bytes=1)
SETTLING = Conditions(is_settling=True)


def ledger(budget: int, **held: int) -> Ledger:
    """Return a ledger with models that have memory."""
    one = Ledger(budget)
    for model, size in held.items():
        load(one, model, size)
    return one


def load(one: Ledger, model: str, size: int) -> None:
    one.join(model)
    one.size(model, size)
    one.grant(model)


def wait(one: Ledger, model: str, size: int | None, *, may_evict: bool = True) -> None:
    one.join(model, may_evict=may_evict)
    if size is not None:
        one.size(model, size)


def idle(model: str, last_used_s: float = 0.0, footprint: int = 0) -> Resident:
    return Resident(model, may_go=True, last_used_s=last_used_s, footprint_bytes=footprint)


def test_what_fits_is_granted_and_reserved() -> None:
    one = ledger(100, a=60)
    wait(one, "b", 40)
    assert one.next_step([Resident("a")], CALM) == Step("b")
    one.grant("b")
    assert (one.reserved_bytes, one.room_bytes, one.line) == (100, 0, ())


def test_more_than_there_is_cannot_be_granted() -> None:
    one = ledger(100, a=60)
    wait(one, "b", 41)
    with pytest.raises(OverBudget):
        one.grant("b")


def test_a_first_load_of_unknown_size_has_all_until_its_size_is_known() -> None:
    one = Ledger(100)
    wait(one, "a", None)
    assert one.next_step([], CALM) == Step("a")
    one.grant("a")
    assert one.room_bytes == 0
    wait(one, "b", 30)
    assert one.next_step([Resident("a")], CALM).granted is None
    one.size("a", 60)
    assert one.next_step([Resident("a")], CALM).granted == "b"


def test_a_load_of_unknown_size_waits_for_it_beside_others_and_holds_up_none() -> None:
    one = ledger(100, a=60)
    wait(one, "b", None)
    wait(one, "c", 40)
    step = one.next_step([Resident("a")], CALM)
    assert (step.granted, step.waiting) == ("c", {"b": "its size to be known"})


def test_idle_models_go_for_a_load_the_longest_unused_first_and_no_more_than_needed() -> None:
    one = ledger(100, a=30, b=30, c=40)
    wait(one, "d", 50)
    residents = [idle("a", 3.0), idle("b", 1.0), idle("c", 2.0)]
    assert one.next_step(residents, CALM).evicted == ("b", "c")
    wait(one, "d", 40)
    assert one.next_step(residents, CALM).evicted == ("c",)


def test_nobody_goes_where_that_would_not_be_enough() -> None:
    one = ledger(100, a=30, b=70)
    wait(one, "c", 40)
    step = one.next_step([idle("a"), Resident("b")], CALM)
    assert step == Step(
        waiting={
            "c": "0.00 GB of memory, of which 0.00 GB are free;"
            " the models that have the rest are pinned, in use or new, and may not go now"
        }
    )


def test_a_load_that_sends_nobody_away_says_so() -> None:
    one = ledger(100, a=80)
    wait(one, "c", 40, may_evict=False)
    (words,) = one.next_step([idle("a")], CALM).waiting.values()
    assert words.endswith("this load sends no other away")


def test_a_load_waits_for_models_that_go_already_and_sends_no_others_away() -> None:
    one = ledger(100, a=50, b=50)
    wait(one, "c", 50)
    leaving = Resident("a", is_leaving=True)
    assert one.next_step([leaving, idle("b")], CALM) == Step(waiting={"c": "memory that models give back"})
    one.release("a")
    assert one.next_step([idle("b")], CALM).granted == "c"


def test_a_load_that_may_send_nobody_away_waits_for_room() -> None:
    one = ledger(100, a=60)
    wait(one, "b", 60, may_evict=False)
    assert one.next_step([idle("a")], CALM).evicted == ()
    one.allow_eviction("b")
    assert one.next_step([idle("a")], CALM).evicted == ("a",)


def test_loads_begin_in_their_order() -> None:
    one = ledger(100, a=60)
    wait(one, "b", 100)
    wait(one, "c", 40)
    step = one.next_step([Resident("a")], CALM)
    assert step.granted is None
    assert step.waiting["c"] == "the loads before it"


def test_a_load_may_pass_one_that_waits_where_both_fit_in_the_end() -> None:
    one = ledger(100, a=60)
    wait(one, "b", 60)
    wait(one, "c", 25)
    wait(one, "d", 15)
    wait(one, "e", 1)
    passed: list[str | None] = []
    for _ in range(3):
        step = one.next_step([Resident("a"), *(Resident(each) for each in passed if each)], CALM)
        passed.append(step.granted)
        if step.granted is not None:
            one.grant(step.granted)
    assert passed == ["c", "d", None]
    one.release("a")
    assert one.next_step([Resident("c"), Resident("d")], CALM).granted == "b"


def test_loads_that_pass_another_leave_together_what_it_needs() -> None:
    one = ledger(100, a=50)
    wait(one, "b", 80)
    wait(one, "c", 15)
    wait(one, "d", 15)
    residents = [Resident("a"), Resident("c")]
    assert one.next_step(residents, CALM).granted == "c"
    one.grant("c")
    step = one.next_step(residents, CALM)
    assert (step.granted, step.waiting["d"]) == (None, "the loads before it")
    one.release("c")
    assert one.next_step(residents, CALM).granted == "d"


def test_a_load_that_pinned_models_leave_no_room_for_holds_up_nobody() -> None:
    one = ledger(100, a=60, b=30)
    wait(one, "c", 50)
    wait(one, "d", 35)
    step = one.next_step([Resident("a", is_pinned=True), idle("b")], CALM)
    assert step.evicted == ("b",)
    one.release("b")
    assert one.next_step([Resident("a", is_pinned=True)], CALM).granted == "d"


def test_no_load_begins_while_memory_is_too_full_or_not_back() -> None:
    for conditions in (FULL, SETTLING):
        for size in (40, None):
            one = Ledger(100)
            wait(one, "a", size)
            assert one.next_step([], conditions).granted is None


def test_models_go_where_what_they_hold_makes_the_machine_too_full() -> None:
    one = ledger(100, a=30, b=30)
    wait(one, "c", 10)
    residents = [idle("a", 1.0, footprint=5), idle("b", 2.0, footprint=50)]
    assert one.next_step(residents, Conditions(excess_bytes=20)).evicted == ("b",)
    assert one.next_step(residents, Conditions(excess_bytes=60)).evicted == ()


def test_a_model_that_takes_more_than_was_thought_gets_what_is_left() -> None:
    one = ledger(100, a=50, b=30)
    one.size("a", 60)
    assert one.held_bytes("a") == 60
    one.size("a", 90)
    assert (one.held_bytes("a"), one.room_bytes) == (70, 0)


def test_a_process_that_cannot_be_ended_keeps_what_it_has() -> None:
    one = ledger(100, a=80)
    one.strand("a", "a 1")
    one.release("a")
    assert (one.held_bytes("a"), one.room_bytes) == (0, 20)
    wait(one, "a", 30)
    assert one.next_step([], CALM).granted is None
    one.release("a 1")
    assert one.next_step([], CALM).granted == "a"


SIZES = st.integers(0, 100)
CANDIDATES = st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)), max_size=6)


@given(CANDIDATES, SIZES, SIZES)
def test_victims_are_enough_and_none_of_them_is_too_many(
    told: list[tuple[bool, int, int, int]], short: int, excess: int
) -> None:
    residents = [Resident(str(index), may_go, last_used_s=used) for index, (may_go, _, _, used) in enumerate(told)]
    residents = [
        Resident(one.model, one.may_go, last_used_s=one.last_used_s, footprint_bytes=told[index][2])
        for index, one in enumerate(residents)
    ]
    sizes = {str(index): size for index, (_, size, _, _) in enumerate(told)}
    footprints = {one.model: one.footprint_bytes for one in residents}
    able = [one.model for one in residents if one.may_go]
    victims = victims_among(residents, sizes, short, excess)

    def is_enough(models: Sequence[str]) -> bool:
        return sum(sizes[one] for one in models) >= short and sum(footprints[one] for one in models) >= excess

    assert set(victims) <= set(able)
    assert is_enough(victims) == is_enough(able) or not victims
    for one in victims:
        assert not is_enough([other for other in victims if other != one])


class House:
    """Models that come, work, rest and go at random, and what a careful observer sees of them.

    Attributes:
        alive: what each process really takes, by model.
        busy: models that serve someone.
    """

    def __init__(self, seed: int, budget: int) -> None:
        self.dice = random.Random(seed)
        self.budget = budget
        self.ledger = Ledger(budget)
        self.needs = {f"m{index}": self.dice.randint(0, budget) for index in range(6)}
        self.pinned = {model for model in self.needs if self.dice.random() < 0.2}
        self.alive: dict[str, int] = {}
        self.used_s: dict[str, float] = {}
        self.busy: set[str] = set()
        self.leaving: set[str] = set()
        self.now_s = 0.0

    def play(self, turns: int) -> None:
        acts = (self.want, self.learn, self.rest, self.use, self.end, self.forget)
        for _ in range(turns):
            self.now_s += 1
            self.dice.choice(acts)(self.dice.choice(list(self.needs)))
            self.advance(Conditions(is_settling=self.dice.random() < 0.2))

    def want(self, model: str) -> None:
        if model not in self.alive:
            self.ledger.join(model, may_evict=self.dice.random() < 0.8)

    def learn(self, model: str) -> None:
        self.ledger.size(model, self.needs[model])

    def rest(self, model: str) -> None:
        self.busy.discard(model)

    def use(self, model: str) -> None:
        if model in self.alive and model not in self.leaving:
            self.busy.add(model)
            self.used_s[model] = self.now_s

    def end(self, model: str) -> None:
        if self.alive.pop(model, None) is not None:
            self.busy.discard(model)
            self.leaving.discard(model)
            self.ledger.release(model)

    def forget(self, model: str) -> None:
        self.ledger.leave(model)

    def advance(self, conditions: Conditions) -> None:
        for _ in range(100):
            step = self.ledger.next_step(self.residents(), conditions)
            if step.granted is not None:
                self.ledger.grant(step.granted)
                self.alive[step.granted] = self.needs[step.granted]
                self.used_s[step.granted] = self.now_s
            self.check(step, conditions)
            self.leaving |= set(step.evicted)
            if step.granted is None and not step.evicted:
                return
        raise AssertionError("there is no end of steps")

    def residents(self) -> list[Resident]:
        return [
            Resident(
                model,
                may_go=model not in self.busy | self.leaving | self.pinned,
                is_leaving=model in self.leaving,
                is_pinned=model in self.pinned,
                last_used_s=self.used_s[model],
            )
            for model in self.alive
        ]

    def check(self, step: Step, conditions: Conditions) -> None:
        assert sum(self.alive.values()) <= self.budget
        assert self.ledger.reserved_bytes <= self.budget
        assert not set(step.evicted) & (self.busy | self.pinned | self.leaving)
        assert step.granted is None or not conditions.is_settling
        assert not set(self.ledger.line) & self.alive.keys()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 1000))
def test_whatever_happens_no_instant_is_over_budget_and_nobody_at_work_goes(seed: int, budget: int) -> None:
    House(seed, budget).play(200)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 1000))
def test_once_all_rest_every_load_that_can_fit_begins(seed: int, budget: int) -> None:
    house = House(seed, budget)
    house.play(100)
    house.pinned.clear()
    for model in house.ledger.line:
        house.ledger.size(model, house.needs[model])
        house.ledger.allow_eviction(model)
    waiting = list(house.ledger.line)
    begun: list[str] = []
    for _ in range(50):
        house.busy.clear()
        before = set(house.alive)
        house.advance(CALM)
        begun += sorted(set(house.alive) - before)
        for model in list(house.leaving):
            house.end(model)
    assert house.ledger.line == ()
    assert sorted(begun) == sorted(waiting)
