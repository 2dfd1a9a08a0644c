from dataclasses import dataclass, field

from tests.worker.scheduler_life import sequence
from worker.places import INTERVAL_S, PlaceWatch
from worker.sequence import Sequence


@dataclass
class Line:
    """Places by request, and a clock that the test moves."""

    places: dict[str, int] = field(default_factory=dict[str, int])
    now: float = 0.0
    sequences: list[Sequence] = field(default_factory=list[Sequence])

    def __call__(self) -> float:
        return self.now

    def of(self) -> dict[Sequence, int]:
        waiting = [each for each in self.sequences if each.request_id in self.places]
        return {each: self.places[each.request_id] for each in waiting}


def watch(line: Line, *names: str) -> tuple[PlaceWatch, list[str]]:
    subject = PlaceWatch(line)
    line.sequences = [sequence(name) for name in names]
    for each in line.sequences:
        subject.add(each)
    return subject, [each.key for each in line.sequences]


def test_a_place_is_told_at_once_and_again_only_where_it_has_changed():
    line = Line({"a": 2, "b": 0})
    subject, (a, b) = watch(line, "a", "b")
    assert subject.changed(line.of) == [(a, 2), (b, 0)]
    line.now = 10.0
    assert subject.changed(line.of) == []
    line.places["a"] = 1
    line.now = 20.0
    assert subject.changed(line.of) == [(a, 1)]


def test_changes_are_told_no_more_often_than_every_half_second():
    line = Line({"a": 9})
    subject, (a,) = watch(line, "a")
    told: list[tuple[str, int]] = []
    for tick in range(9):
        line.places["a"] = 9 - tick
        line.now = tick * INTERVAL_S / 4
        told += subject.changed(line.of)
    assert told == [(a, 9), (a, 5), (a, 1)]


def test_who_does_not_wait_is_told_nothing():
    line = Line()
    subject, (key,) = watch(line, "a")
    assert subject.changed(line.of) == []
    subject.remove(key)
    subject.remove(key)
    line.places["a"] = 1
    line.now = 10.0
    assert subject.changed(line.of) == []
