"""What the reader of a request that waits for a slot is told."""

from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request
from worker.events import Event, Started, Waiting
from worker.places import INTERVAL_S
from worker.text_settings import TextSettings


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
