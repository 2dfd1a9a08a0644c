"""Windows of several requests through one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.step import NumericPath
from tests.support.tiny_whisper import write_mlx
from tests.worker.speech.driving import (
    GREEDY,
    Driven,
    Sound,
    loaded_speech,
    noise,
    request,
    segments,
    silence,
)
from tests.worker.ticking import TICK_S
from worker.events import Completed, Event, LanguageFound, SpeechEvent, SpeechSegment, Started
from worker.speech.file import FileTranscriber
from worker.speech.file_hearing import FileHearing
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.request import SpeechRequest


def told(events: list[Event]) -> list[Event]:
    """Return what is said, without times that are measured."""
    return [event for event in events if isinstance(event, SpeechSegment | LanguageFound)]


@pytest.mark.parametrize("max_new_windows", [1, 2, 4])
def test_requests_side_by_side_are_told_what_each_is_told_alone(speech: LoadedSpeech, max_new_windows: int):
    options = [
        GREEDY,
        replace(GREEDY, languages=()),
        replace(GREEDY, languages=("de", "fr"), has_words=True),
        replace(GREEDY, num_beams=3, max_alternatives=2),
        replace(GREEDY, temperatures=(0.7,), best_of=3),
        replace(GREEDY, conditions_on_previous=False, clips=((0.0, 0.5), (0.6, 1.0))),
    ]
    lengths = [1.1, 0.35, 0.8, 0.5, 0.9, 1.0]
    wanted = [(length, each, str(seed)) for seed, (length, each) in enumerate(zip(lengths, options, strict=True))]

    def made(length: float, each: SpeechOptions, key: str) -> SpeechRequest:
        return request(Sound.of(noise(length, int(key))), each, key=key)

    alone = {key: told(Driven(speech).transcribe(made(length, each, key))) for length, each, key in wanted}
    together = Driven(speech, max_new_windows=max_new_windows)
    for length, each, key in wanted:
        together.admit(made(length, each, key))
    together.finish()
    assert {key: told(events) for key, events in together.events.items()} == alone
    assert any(segments(events) for events in together.events.values())


def test_a_request_ends_with_what_it_consumed(speech: LoadedSpeech):
    events = Driven(speech).transcribe(request(Sound.of(noise(0.9))))
    assert isinstance(events[0], Started)
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.usage.audio_s == pytest.approx(0.9)
    assert completed.usage.completion_tokens > 0
    assert completed.usage.speech_s is None


def test_a_file_is_decoded_from_its_first_token_on(speech: LoadedSpeech):
    driven = Driven(speech)
    (*_, completed) = driven.transcribe(request(Sound.of(noise(0.4))))
    assert isinstance(completed, Completed)
    timing, ticks_us = completed.timing, round(TICK_S * 1e6) * (completed.usage.completion_tokens - 1)
    assert timing.decode_us == pytest.approx(ticks_us, abs=2)
    assert timing.total_us == pytest.approx(timing.queue_us + timing.prefill_us + timing.decode_us, abs=2)
    assert timing.time_to_first_token_us == pytest.approx(timing.queue_us + timing.prefill_us, abs=2)
    assert timing.decode_us > 3 * timing.time_to_first_token_us


def test_what_is_counted_adds_up(speech: LoadedSpeech):
    driven = Driven(speech)
    for key in "ab":
        driven.admit(request(Sound.of(noise(0.4)), key=key))
    assert (driven.workload.counts().running, driven.workload.counts().queued) == (0, 2)
    driven.until(lambda: driven.workload.counts().running == 2)
    assert driven.workload.counts().cache_bytes == 2 * speech.row_bytes
    driven.finish()
    counts = driven.workload.counts()
    assert (counts.running, counts.queued, counts.cache_bytes) == (0, 0, 0)
    assert counts.audio_us_total == 800_000
    assert counts.completion_tokens_total > 0
    assert [each.name for each in counts.durations] == ["queue", "time_to_first_segment"]


def test_a_dropped_request_is_gone_with_the_next_tick(speech: LoadedSpeech):
    driven = Driven(speech)
    for key in "ab":
        driven.admit(request(Sound.of(noise(5)), key=key))
    driven.until(lambda: driven.workload.counts().running == 2)
    before = len(driven.events["a"])
    usage = driven.cancel("a")
    assert usage.audio_s == pytest.approx(5)
    assert driven.workload.counts().cache_bytes == speech.row_bytes
    driven.tick_once()
    assert len(driven.events["a"]) == before
    assert driven.workload.drop("a").audio_s == 0
    driven.finish()


class Wordy(FileTranscriber):
    """Finds a segment in each window, whatever the model says."""

    num_windows = 0

    def next(self) -> FileHearing | None:
        hearing = super().next()
        self.num_windows += hearing is not None
        return hearing

    def take_events(self) -> list[SpeechEvent]:
        super().take_events()
        found: list[SpeechEvent] = [SpeechSegment(0, 0, 1, "a word") for _ in range(self.num_windows)]
        self.num_windows = 0
        return found


def test_who_does_not_read_is_not_heard_and_the_rest_is(speech: LoadedSpeech):
    driven = Driven(speech, Wordy)
    driven.admit(request(Sound.of(noise(30)), key="slow"), max_bytes=100)
    driven.until(lambda: driven.jobs["slow"].outbox.is_full)
    driven.until(lambda: driven.workload.counts().cache_bytes == 0)
    waiting = driven.jobs["slow"].outbox.waiting_bytes
    driven.transcribe(request(Sound.of(noise(1)), key="quick"))
    assert driven.jobs["slow"].outbox.waiting_bytes == waiting
    assert driven.workload.view(driven.jobs["slow"]).state == "paused"


def test_an_idle_workload_lets_the_engine_wait(speech: LoadedSpeech):
    driven = Driven(speech)
    driven.admit(request(Sound.of(silence(0.1), is_complete=False), is_whole=False))
    assert driven.tick_once()
    assert not driven.tick_once()
    assert driven.tick_once(), "who asks again was woken"
    assert not driven.tick_once()


class Fickle(FileTranscriber):
    """Loses interest in its first window as soon as it is open."""

    lost: FileHearing | None = None

    def next(self) -> FileHearing | None:
        hearing = super().next()
        if hearing is not None and self.lost is None:
            self.lost = hearing
            hearing.is_wanted = False
            for channel in self._channels:
                for strand in channel.strands:
                    strand.is_open = False
        return hearing


def test_a_window_that_nobody_wants_any_more_gives_its_place_to_the_next(speech: LoadedSpeech):
    driven = Driven(speech, Fickle, max_rows=1)
    events = driven.transcribe(request(Sound.of(noise(0.4))))
    assert isinstance(events[-1], Completed)
    plain = Driven(speech).transcribe(request(Sound.of(noise(0.4))))
    assert told(events) == told(plain)
    assert events[-1].usage.completion_tokens == plain[-1].usage.completion_tokens  # pyright: ignore[reportAttributeAccessIssue]


def test_the_reference_path_hears_too(tmp_path: Path):
    speech = loaded_speech(write_mlx(tmp_path / "tiny"), NumericPath.REFERENCE)
    driven = Driven(speech)
    for key in "ab":
        driven.admit(request(Sound.of(noise(0.8)), key=key))
    driven.finish()
    assert told(driven.events["a"]) == told(driven.events["b"])
    assert isinstance(driven.events["a"][-1], Completed)
