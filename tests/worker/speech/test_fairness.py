"""Who gets the next window."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from worker.speech.fairness import Share, Turns


@dataclass(eq=False)
class Waiting:
    name: str
    is_urgent: bool = False
    priority: int = 0
    share: Share = field(default_factory=Share)


def served(turns: Turns, waiters: list[Waiting], num_turns: int) -> str:
    """Give out turns to who always wants one, and return who got them."""
    names = ""
    for _ in range(num_turns):
        first = next(turns.order(waiters))
        turns.take(first)
        names += first.name
    return names


def joined(turns: Turns, *waiters: Waiting) -> list[Waiting]:
    for waiter in waiters:
        turns.join(waiter)
    return list(waiters)


def test_equals_take_turns():
    turns = Turns()
    names = served(turns, joined(turns, Waiting("a"), Waiting("b"), Waiting("c")), 9)
    assert sorted(names) == list("aaabbbccc")


@pytest.mark.parametrize("num_before", [100, 101])
def test_a_newcomer_gets_one_of_the_next_two_turns(num_before: int):
    turns = Turns()
    old = joined(turns, Waiting("a"), Waiting("b"))
    served(turns, old, num_before)
    new = joined(turns, Waiting("n"))
    assert "n" in served(turns, [*old, *new], 2)


def test_a_stream_of_newcomers_starves_nobody():
    turns = Turns()
    old = joined(turns, Waiting("a"), Waiting("b"))
    served(turns, old, 50)
    names = ""
    for number in range(40):
        names += served(turns, [*old, *joined(turns, Waiting(str(number % 10)))], 1)
    assert names.count("a") + names.count("b") >= 15
    assert min(names.count("a"), names.count("b")) >= 5


def test_who_listens_goes_first_and_then_who_has_priority():
    turns = Turns()
    waiters = joined(turns, Waiting("a"), Waiting("b", priority=5), Waiting("c", is_urgent=True, priority=-5))
    assert served(turns, waiters, 4) == "cccc"
    assert served(turns, waiters[:2], 4) == "bbbb"


def test_asking_changes_nothing():
    turns = Turns()
    waiters = joined(turns, Waiting("a"), Waiting("b"))
    assert [each.name for each in turns.order(waiters)] == [each.name for each in turns.order(waiters)]
    assert list(turns.order([])) == []
