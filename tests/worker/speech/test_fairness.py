"""Who gets the next window."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from worker.speech.fairness import LAST_PATIENCE, PATIENCE, Share, Turns, Urgency


@dataclass(eq=False)
class Waiting:
    name: str
    urgency: Urgency = Urgency.PATIENT
    priority: int = 0
    share: Share = field(default_factory=Share)


def served(turns: Turns, waiters: list[Waiting], num_turns: int) -> str:
    """Give out turns to who always wants one, and return who got them."""
    names = ""
    for _ in range(num_turns):
        first = next(turns.order(waiters))
        turns.take(first, first.urgency)
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
    waiters = joined(turns, Waiting("a"), Waiting("b", priority=5), Waiting("c", Urgency.SPEAKING, -5))
    assert served(turns, waiters, 4) == "cccc"
    assert served(turns, waiters[:2], 4) == "bbbb"


def test_asking_changes_nothing():
    turns = Turns()
    waiters = joined(turns, Waiting("a"), Waiting("b"))
    assert [each.name for each in turns.order(waiters)] == [each.name for each in turns.order(waiters)]
    assert list(turns.order([])) == []


def test_what_is_over_goes_before_what_pauses_and_that_before_interims_and_files():
    turns = Turns()
    waiters = joined(turns, *(Waiting(each.name[0], each, priority=-each) for each in Urgency))
    assert "".join(each.name for each in turns.order(waiters)) == "OPSP"
    assert [each.urgency for each in turns.order(waiters)] == sorted(Urgency, reverse=True)


@pytest.mark.parametrize(
    ("listener", "num_turns"),
    [(Urgency.SPEAKING, PATIENCE), (Urgency.PAUSING, LAST_PATIENCE), (Urgency.OVER, LAST_PATIENCE)],
)
def test_files_wait_for_those_who_listen_but_not_for_ever(listener: Urgency, num_turns: int):
    turns = Turns()
    waiters = joined(turns, Waiting("f"), Waiting("a", listener), Waiting("b", listener))
    names = served(turns, waiters, 3 * (num_turns + 1))
    assert [len(between) for between in names.split("f")] == [num_turns, num_turns, num_turns, 0]


def test_a_final_goes_before_a_file_that_waited_behind_interims():
    turns = Turns()
    file, speaker = joined(turns, Waiting("f"), Waiting("s", Urgency.SPEAKING))
    served(turns, [file, speaker], PATIENCE)
    assert turns.is_patient_due
    assert served(turns, [file, speaker, Waiting("o", Urgency.OVER)], 1) == "o"
    assert served(turns, [file, speaker], 2) == "fs"


def test_a_file_that_has_nothing_to_be_heard_gathers_no_claim():
    turns = Turns()
    file, over = joined(turns, Waiting("f"), Waiting("o", Urgency.OVER))
    for _ in range(3 * LAST_PATIENCE):
        assert over in list(turns.order([file, over]))
        turns.take(over, Urgency.OVER)  # the file, where it was asked first, had nothing
    assert served(turns, [file, over], 1) == "o"


def test_a_newcomer_that_can_wait_did_not_wait_while_it_was_not_there():
    turns = Turns()
    over = joined(turns, Waiting("o", Urgency.OVER))
    served(turns, over, 3 * LAST_PATIENCE)
    assert served(turns, [*joined(turns, Waiting("f")), *over], 2) == "oo"
