"""What the reader of a request that waits for a slot is told."""

import random

import pytest

from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request
from worker.events import Event, Started, Waiting
from worker.places import INTERVAL_S
from worker.text_settings import TextSettings
from worker.waiting import WaitingLine


def waited(events: list[Event]) -> list[int]:
    return [event.place for event in events if isinstance(event, Waiting)]


def test_who_waits_is_told_its_place_until_it_starts_and_never_after(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(1))
    driven.admit(request("first", max_tokens=20))
    driven.tick_once()
    for name in ("second", "third"):
        driven.admit(request(name, max_tokens=20, waiting_events=True))
    driven.tick_once()
    assert [waited(driven.events[name]) for name in ("second", "third")] == [[0], [1]]
    driven.clock.now += INTERVAL_S
    driven.finish()
    third = driven.events["third"]
    assert waited(third) == [1, 0]
    assert isinstance(third[2], Started)
    assert [type(event) for event in driven.events["second"][:2]] == [Waiting, Started]


def test_who_starts_at_once_or_does_not_ask_is_told_nothing(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(1))
    driven.admit(request("first", waiting_events=True))
    driven.admit(request("second"))
    driven.finish()
    assert waited(driven.events["first"]) == waited(driven.events["second"]) == []


def test_sequences_that_follow_their_first_are_not_told_of(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(1))
    driven.admit(request("many", num_sequences=3, max_tokens=5, waiting_events=True))
    driven.until(lambda: driven.workload.counts().completion_tokens_total == 15)
    assert waited(driven.events["many"]) == []


def test_who_waits_behind_a_paused_row_is_told_too(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(1))
    driven.admit(request("slow", max_tokens=100), max_bytes=10)
    driven.until(lambda: driven.state("slow") == "paused")
    driven.admit(request("next", waiting_events=True))
    assert driven.tick_once()
    assert waited(driven.events["next"]) == [0]
    assert not driven.tick_once()


def test_who_is_cancelled_while_it_waits_is_forgotten(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(1))
    driven.admit(request("first", max_tokens=20))
    driven.tick_once()
    driven.admit(request("second", waiting_events=True))
    driven.tick_once()
    driven.cancel("second")
    driven.clock.now += INTERVAL_S
    driven.finish()
    driven.assert_nothing_is_held()


class Line:
    """Requests of all priorities come, wait, start and leave, and what each is told is looked at as it is told."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self.dice = random.Random(seed)
        self.driven = Driven(loaded, TextSettings(self.dice.randint(1, 2)))
        self.told: dict[str, tuple[int, float]] = {}
        self.num_told = 0

    def run(self) -> None:
        for number in range(60):
            if self.dice.random() < 0.4:
                self.come(str(number))
            if self.dice.random() < 0.1 and (keys := list(self.driven.jobs)):
                self.driven.cancel(self.dice.choice(keys))
            self.driven.clock.now += self.dice.choice([0, INTERVAL_S / 3, INTERVAL_S])
            self.tick()
        while self.driven.jobs:
            self.tick()
        self.driven.assert_nothing_is_held()

    def come(self, name: str) -> None:
        priority, num_sequences = self.dice.choice([-5, 0, 0, 7]), self.dice.choice([1, 1, 2])
        wanted = request(name, priority=priority, num_sequences=num_sequences, waiting_events=True)
        self.driven.admit(wanted, max_bytes=self.dice.choice([10, 1 << 20]))

    def tick(self) -> None:
        before = {key: len(waited(events)) for key, events in self.driven.events.items()}
        self.driven.tick_once()
        places = self.places()
        for key, events in self.driven.events.items():
            for place in waited(events)[before[key] :]:
                self.look(key, place, places)
            self.driven.read(key)

    def places(self) -> dict[str, int]:
        """Return how many sequences wait before the first of each request."""
        line = sorted(self.driven.workload._scheduler._waiting._entries, key=lambda entry: entry.rank)
        return {entry.sequence.key: place for place, entry in reversed(list(enumerate(line)))}

    def look(self, key: str, place: int, places: dict[str, int]) -> None:
        assert places[key] == place
        assert Started not in map(type, self.driven.events[key])
        now = self.driven.clock.now
        last_place, told_at = self.told.get(key, (None, 0.0))
        assert place != last_place
        assert now - told_at >= INTERVAL_S
        self.told[key] = (place, now)
        self.num_told += 1


def test_in_any_line_each_is_told_its_true_place_and_not_too_often(loaded: LoadedModel):
    num_told = 0
    for seed in range(12):
        print(f"seed {seed}")
        line = Line(loaded, seed)
        line.run()
        num_told += line.num_told
    assert num_told > 100


def test_a_place_that_is_not_true_would_be_seen(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WaitingLine, "places", lambda self: {entry.sequence: 1 for entry in self._entries})
    with pytest.raises(AssertionError):
        Line(loaded, 0).run()
