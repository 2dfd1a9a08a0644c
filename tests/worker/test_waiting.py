from collections.abc import Callable

import pytest

from tests.worker.scheduler_life import follower, sequence
from worker.sequence import Sequence, State
from worker.waiting import MAX_OVERTAKES, WaitingLine


def line_of(*sequences: Sequence) -> WaitingLine:
    line = WaitingLine()
    for subject in sequences:
        line.add(subject)
    return line


def started(line: WaitingLine) -> str | None:
    subject = line.next()
    if subject is None:
        return None
    line.start(subject)
    return subject.request_id


def compute(leader: Sequence) -> None:
    leader.prefilled = len(leader.request.prompt_ids)


def test_nobody_is_next_in_an_empty_line():
    assert WaitingLine().next() is None


def test_the_higher_priority_is_next_and_among_equals_the_first():
    priorities = {"a": 0, "b": -128, "c": 127, "d": 127, "e": 0}
    line = line_of(*(sequence(name, priority=priority) for name, priority in priorities.items()))
    assert [started(line) for _ in range(6)] == ["c", "d", "a", "e", "b", None]


def test_asking_who_is_next_changes_nothing():
    line = line_of(sequence("a"), sequence("b"))
    assert line.next() is line.next() is not None
    assert len(line) == 2


def test_a_place_is_counted_by_priority():
    first, second, third = sequence("a"), sequence("b", priority=1), sequence("c")
    line = line_of(first, second, third)
    assert line.places() == {second: 0, first: 1, third: 2}


def test_who_does_not_wait_has_no_place():
    subject = sequence("a")
    line = line_of(subject)
    line.remove(subject)
    assert line.places() == {}
    assert len(line) == 0


def test_the_first_that_came_is_overtaken_a_bounded_number_of_times_in_a_row():
    line = line_of(sequence("low", priority=-1), *(sequence("high") for _ in range(2 * MAX_OVERTAKES)))
    starts = [started(line) for _ in range(len(line))]
    assert starts.index("low") == MAX_OVERTAKES


def test_many_of_low_priority_take_one_start_in_seventeen_from_higher_ones():
    lows = [sequence("low", priority=-1) for _ in range(10)]
    line = line_of(*lows, *(sequence("high") for _ in range(100)))
    starts = [started(line) for _ in range(4 * (MAX_OVERTAKES + 1))]
    assert starts == (["high"] * MAX_OVERTAKES + ["low"]) * 4


@pytest.mark.parametrize("make_ready", [compute, lambda leader: leader.move(State.ENDED)], ids=["computed", "ended"])
def test_a_follower_keeps_its_place_and_holds_nobody_up(make_ready: Callable[[Sequence], None]):
    leader = sequence("a")
    line = line_of(leader, follower(leader), sequence("b"), sequence("c"))
    assert [started(line), started(line)] == ["a", "b"]
    make_ready(leader)
    assert [started(line) for _ in range(3)] == ["a", "c", None]


def test_a_follower_that_cannot_start_is_not_overtaken():
    leader = sequence("low", priority=-1)
    line = line_of(leader, follower(leader))
    line.start(leader)
    for _ in range(MAX_OVERTAKES + 1):
        line.add(sequence("high"))
        assert started(line) == "high"
    compute(leader)
    line.add(sequence("high"))
    assert [started(line), started(line)] == ["high", "low"]
