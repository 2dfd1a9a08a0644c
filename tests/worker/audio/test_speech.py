"""Probabilities to stretches of speech."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.audio.chances import CASES, chances
from worker.audio.speech import CHUNK_S, SpeechEnded, SpeechEvent, SpeechRules, SpeechStarted, SpeechTimeline, Stretch

RULES = SpeechRules()
GOLDENS = json.loads(Path(__file__).with_name("speech_goldens.json").read_text())


def timeline_of(*runs: tuple[float, int], rules: SpeechRules = RULES) -> tuple[SpeechTimeline, list[SpeechEvent]]:
    """Return what is known behind runs of a probability and a number of chunks."""
    timeline = SpeechTimeline(rules)
    return timeline, [event for chance, count in runs for event in timeline.add([chance] * count)]


def told(events: list[SpeechEvent]) -> list[tuple[type[SpeechEvent], float]]:
    return [(type(event), round(event.at_s, 6)) for event in events]


@pytest.mark.parametrize("case", CASES)
def test_stretches_are_those_of_the_source(case: int) -> None:
    timeline = SpeechTimeline(RULES)
    timeline.add(chances(case))
    timeline.finish(timeline.heard_s)
    found = [[round(stretch.start_s * 16_000), round(stretch.end_s * 16_000)] for stretch in timeline.stretches]
    assert found == GOLDENS[str(case)]


def test_silence_is_no_speech() -> None:
    timeline, events = timeline_of((0.1, 100))
    assert events == timeline.finish(3.2) == []
    assert timeline.stretches == ()
    assert timeline.since_s is timeline.last_spoken_s is None
    assert timeline.speech_s == 0
    assert timeline.heard_s == pytest.approx(3.2)


def test_speech_is_told_once_it_is_long_enough_and_once_it_has_ended() -> None:
    timeline, events = timeline_of((0.1, 10), (0.9, 7))
    assert events == []
    assert not timeline.is_speech
    assert timeline.since_s == pytest.approx(0.29)
    assert told(timeline.add([0.9])) == [(SpeechStarted, 0.29)]
    assert timeline.is_speech
    assert timeline.add([0.1] * 4) == []
    assert timeline.is_speech
    assert told(timeline.add([0.1])) == [(SpeechEnded, 0.606)]
    assert not timeline.is_speech
    assert timeline.stretches == (Stretch(10 * CHUNK_S - 0.03, 18 * CHUNK_S + 0.03),)


def test_what_is_too_short_is_none() -> None:
    timeline, events = timeline_of((0.1, 10), (0.9, 7), (0.1, 10))
    assert events == []
    assert timeline.stretches == ()
    assert timeline.since_s is None


def test_a_short_silence_ends_nothing() -> None:
    timeline, events = timeline_of((0.9, 20), (0.1, 4), (0.9, 20), (0.1, 10))
    assert told(events) == [(SpeechStarted, 0), (SpeechEnded, 1.438)]
    assert len(timeline.stretches) == 1


def test_between_the_thresholds_all_stays_as_it_was() -> None:
    timeline, events = timeline_of((0.45, 20), (0.9, 1), (0.45, 20), (0.1, 5), (0.45, 20))
    assert told(events) == [(SpeechStarted, 0.61), (SpeechEnded, 1.342)]
    assert timeline.since_s is None


def test_speech_at_the_end_ends_there() -> None:
    timeline, _ = timeline_of((0.1, 10), (0.9, 20))
    assert timeline.finish(0.95) == [SpeechEnded(0.95)]
    assert timeline.stretches[0].end_s == 0.95


def test_speech_at_the_beginning_begins_there() -> None:
    timeline, _ = timeline_of((0.9, 20), (0.1, 5))
    assert timeline.stretches[0].start_s == 0


def test_stretches_never_overlap_however_much_they_are_padded() -> None:
    timeline, events = timeline_of((0.9, 20), (0.1, 6), (0.9, 20), (0.1, 6), rules=SpeechRules(pad_s=0.15))
    first, second = timeline.stretches
    assert first.end_s == second.start_s
    assert [type(event) for event in events] == [SpeechStarted, SpeechEnded] * 2


def test_silence_since_the_last_word_is_known() -> None:
    timeline, _ = timeline_of((0.9, 20), (0.1, 3))
    assert timeline.last_spoken_s == pytest.approx(20 * CHUNK_S)
    timeline.add([0.1] * 10)
    assert timeline.last_spoken_s == pytest.approx(20 * CHUNK_S)
    assert timeline.heard_s == pytest.approx(33 * CHUNK_S)


def test_speech_is_found_in_a_range() -> None:
    timeline, _ = timeline_of((0.1, 50), (0.9, 50), (0.1, 100), (0.9, 25))  # 1.57 to 3.23, and from 6.37 on
    assert not timeline.overlaps(0, 1.5)
    assert timeline.overlaps(0, 1.6)
    assert timeline.overlaps(2, 2.1)
    assert timeline.overlaps(3.2, 9)
    assert not timeline.overlaps(3.24, 6.3)
    assert timeline.overlaps(6, 6.5)
    assert timeline.overlaps(7, 30)
    assert not timeline.overlaps(7.2, 30)


def test_the_next_speech_is_found() -> None:
    timeline, _ = timeline_of((0.1, 50), (0.9, 50), (0.1, 100), (0.9, 25))
    assert timeline.next_speech(0) == pytest.approx(1.57)
    assert timeline.next_speech(2) == 2
    assert timeline.next_speech(3.24) == pytest.approx(6.37)
    assert timeline.next_speech(7) == 7
    assert timeline.next_speech(7.2) is None


def test_speech_that_may_be_ending_is_over_where_it_fell_silent() -> None:
    timeline, _ = timeline_of((0.9, 20), (0.1, 4))
    assert timeline.is_speech
    assert timeline.next_speech(0.669) == 0.669
    assert timeline.next_speech(0.671) is None


def test_what_is_long_past_is_forgotten() -> None:
    timeline, _ = timeline_of(*[(0.9, 20), (0.1, 20)] * 50)
    seconds = timeline.speech_s
    timeline.forget(40 * 40 * CHUNK_S)
    assert len(timeline.stretches) == 10
    assert timeline.speech_s == seconds == pytest.approx(50 * 20 * CHUNK_S + 50 * 0.06 - 0.03)


def test_seconds_of_speech_grow_while_it_goes_on() -> None:
    timeline, _ = timeline_of((0.9, 20))
    assert timeline.speech_s == pytest.approx(0.64)
    timeline.add([0.9] * 10)
    assert timeline.speech_s == pytest.approx(0.96)


def lawful(timeline: SpeechTimeline, events: list[SpeechEvent]) -> None:
    assert [type(event) for event in events] == [SpeechStarted, SpeechEnded] * len(timeline.stretches)
    times = [event.at_s for event in events]
    assert times == [at for stretch in timeline.stretches for at in (stretch.start_s, stretch.end_s)]
    assert times == sorted(times)
    gaps = [later - sooner for sooner, later in zip(times[1::2], times[2::2], strict=False)]
    assert all(gap >= 0.1 - 0.06 for gap in gaps)
    assert all(stretch.end_s - stretch.start_s > 0.22 for stretch in timeline.stretches)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.34, 0.35, 0.49, 0.5, 1.0]), st.integers(1, 12)), max_size=40))
def test_what_is_told_is_lawful_and_the_same_in_pieces(runs: list[tuple[float, int]]) -> None:
    timeline, events = timeline_of(*runs)
    events += timeline.finish(timeline.heard_s)
    lawful(timeline, events)
    at_once = SpeechTimeline(RULES)
    together = at_once.add([chance for chance, count in runs for _ in range(count)])
    assert together + at_once.finish(at_once.heard_s) == events


def test_the_laws_would_notice_speech_that_ends_too_soon() -> None:
    timeline = SpeechTimeline(SpeechRules(min_silence_s=0, min_speech_s=0))
    events = timeline.add([0.9, 0.1, 0.9, 0.1, 0.1])
    with pytest.raises(AssertionError):
        lawful(timeline, events)


def test_an_hour_is_heard_in_no_time() -> None:
    timeline = SpeechTimeline(RULES)
    timeline.add(np.random.default_rng(0).random(112_500).tolist())
    assert timeline.heard_s == pytest.approx(3600)
