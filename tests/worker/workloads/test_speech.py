"""Windows of several requests through one model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.step import NumericPath
from models.whisper.config import Config
from tests.support.tiny_whisper import write_mlx
from tests.worker.speech.driving import (
    GREEDY,
    Driven,
    Sound,
    failure,
    loaded_speech,
    noise,
    request,
    segments,
    silence,
    tiny_speech,
)
from worker.audio.errors import AudioUnreadable
from worker.errors import AudioUndecodable, InternalError
from worker.events import Completed, Event, LanguageFound, SpeechEvent, SpeechSegment, Started
from worker.speech.bounds import SpeechBounds
from worker.speech.fairness import LAST_PATIENCE, PATIENCE, Urgency
from worker.speech.file import FileTranscriber
from worker.speech.file_hearing import FileHearing
from worker.speech.hearing import Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.request import SpeechRequest
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> LoadedSpeech:
    return tiny_speech(tmp_path_factory.mktemp("whisper") / "tiny")


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


def test_what_is_counted_adds_up(speech: LoadedSpeech):
    driven = Driven(speech)
    for key in "ab":
        driven.admit(request(Sound.of(noise(0.4)), key=key))
    assert (driven.workload.counts().running, driven.workload.counts().queued) == (0, 2)
    driven.until(lambda: driven.workload.counts().running == 2)
    assert driven.workload.counts().cache_bytes == 2 * speech.window_bytes
    driven.finish()
    counts = driven.workload.counts()
    assert (counts.running, counts.queued, counts.cache_bytes) == (0, 0, 0)
    assert counts.audio_us_total == 800_000
    assert counts.completion_tokens_total > 0
    assert [each.name for each in counts.durations] == ["queue", "time_to_first_segment"]


def test_a_short_clip_does_not_wait_behind_a_long_recording(speech: LoadedSpeech):
    driven = Driven(speech, max_windows=1)
    driven.admit(request(Sound.of(noise(20)), key="long"))
    driven.until(lambda: driven.workload.counts().running == 1)
    driven.admit(request(Sound.of(noise(0.3)), key="short"))
    driven.until(lambda: "short" not in driven.jobs)
    assert "long" in driven.jobs
    assert len(segments(driven.events["long"])) < 10


def test_the_last_place_is_kept_for_who_has_none(speech: LoadedSpeech):
    clips = tuple((start / 2, start / 2 + 0.5) for start in range(16))
    driven = Driven(speech, max_windows=4)
    options = replace(GREEDY, conditions_on_previous=False, clips=clips)
    driven.admit(request(Sound.of(noise(8)), options, key="many"))
    driven.until(lambda: driven.workload.counts().cache_bytes == 3 * speech.window_bytes)
    for _ in range(5):
        driven.tick_once()
        assert driven.workload.counts().cache_bytes <= 3 * speech.window_bytes
    driven.admit(request(Sound.of(noise(0.3)), key="one"))
    driven.tick_once()
    assert driven.workload.counts().running == 2


def test_a_dropped_request_is_gone_with_the_next_tick(speech: LoadedSpeech):
    driven = Driven(speech)
    for key in "ab":
        driven.admit(request(Sound.of(noise(5)), key=key))
    driven.until(lambda: driven.workload.counts().running == 2)
    before = len(driven.events["a"])
    usage = driven.cancel("a")
    assert usage.audio_s == pytest.approx(5)
    assert driven.workload.counts().cache_bytes == speech.window_bytes
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


class Spoilt(FileTranscriber):
    """Fails where a test says."""

    place = "next"

    def listen(self) -> bool:
        self._fail_at("listen")
        return super().listen()

    def next(self) -> FileHearing | None:
        self._fail_at("next")
        hearing = super().next()
        if hearing is not None and self.place in {"begin", "spoken", "end"}:
            setattr(hearing, self.place, lambda *_: self._fail_at(self.place))
        return hearing

    def take_events(self) -> list[SpeechEvent]:
        self._fail_at("take_events")
        return super().take_events()

    def _fail_at(self, place: str) -> None:
        if place == self.place:
            raise RuntimeError("spoilt")


@pytest.mark.parametrize("place", ["listen", "next", "begin", "spoken", "end", "take_events"])
def test_a_request_that_fails_ends_alone(speech: LoadedSpeech, place: str, caplog: pytest.LogCaptureFixture):
    def make(wanted: SpeechRequest, loaded: LoadedSpeech, clock: Callable[[], float]) -> Transcriber:
        transcriber = Spoilt(wanted, loaded, clock) if wanted.key == "bad" else FileTranscriber(wanted, loaded, clock)
        if isinstance(transcriber, Spoilt):
            transcriber.place = place
        return transcriber

    driven = Driven(speech, make)
    driven.admit(request(Sound.of(noise(1)), key="bad"))
    driven.admit(request(Sound.of(noise(1)), key="good"))
    driven.finish()
    assert isinstance(failure(driven.events["bad"]), InternalError)
    assert isinstance(driven.events["good"][-1], Completed)
    assert driven.workload.counts().cache_bytes == 0
    assert "request failed" in caplog.text


def test_numbers_that_are_none_end_the_request_that_they_are_of(speech: LoadedSpeech):
    driven = Driven(speech)
    bad = noise(0.4)
    bad[100] = np.nan
    driven.admit(request(Sound.of(bad), key="bad"))
    driven.admit(request(Sound.of(noise(1)), key="good"))
    driven.finish()
    assert isinstance(failure(driven.events["bad"]), InternalError)
    assert isinstance(driven.events["good"][-1], Completed)


def test_audio_that_breaks_off_ends_the_request_although_windows_are_open(speech: LoadedSpeech):
    driven = Driven(speech)
    sound = Sound.of(noise(3), is_complete=False)
    driven.admit(request(sound, is_whole=False))
    driven.until(lambda: driven.workload.counts().cache_bytes > 0)
    sound.recordings[0].end(AudioUnreadable("spoilt"))
    driven.finish()
    assert isinstance(failure(driven.events["r"]), AudioUndecodable)


def test_an_idle_workload_lets_the_engine_wait(speech: LoadedSpeech):
    driven = Driven(speech)
    driven.admit(request(Sound.of(silence(0.1), is_complete=False), is_whole=False))
    assert driven.tick_once()
    assert not driven.tick_once()
    assert driven.tick_once(), "who asks again was woken"
    assert not driven.tick_once()


@pytest.mark.parametrize(("room", "expected"), [(5, 5), (0.5, 1), (1000, 8)])
def test_windows_take_no_more_memory_than_they_may(speech: LoadedSpeech, room: float, expected: int):
    bounds = SpeechBounds(max_windows=8, max_window_bytes=round(room * speech.window_bytes))
    workload = SpeechWorkload(lambda _: speech, make_transcriber, bounds)
    workload.load(lambda _: None)
    assert workload.max_windows == expected
    assert workload.max_jobs == 8 + 64


def test_the_memory_of_a_window_is_told(speech: LoadedSpeech):
    config: Config = speech.config
    memory = speech.session.hear([speech.log_mel(mx.array(noise(0.4)))[: config.num_frames]])[0]
    seen = sum(array.nbytes for pair in memory for array in pair)
    texts = 2 * config.n_text_layer * config.n_text_ctx * config.n_text_state * 4
    assert speech.window_bytes == seen + texts


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
    driven = Driven(speech, Fickle, max_windows=1)
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


class Scripted(FileTranscriber):
    """Wants windows as urgent as a script says, one at a time."""

    heard: list[str]
    script: deque[Urgency]
    last: FileHearing | None = None

    @property
    def urgency(self) -> Urgency:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.script[0] if self.script else Urgency.SPEAKING

    def next(self) -> FileHearing | None:
        if not self.script or any(strand.is_open for channel in self._channels for strand in channel.strands):
            return None
        hearing = super().next()
        if hearing is not None:
            hearing.urgency = self.script.popleft()
            self.heard.append(f"{self._request.key}{hearing.urgency.name[0]}")
        return hearing


class Playhouse:
    """Requests whose windows are as urgent as scripts say.

    Attributes:
        heard: key of the request of each window that was heard, and the first letter of its urgency.
    """

    def __init__(self, speech: LoadedSpeech, max_windows: int = 8, max_new_windows: int = 1) -> None:
        self.heard: list[str] = []
        self.scripts: dict[str, deque[Urgency]] = {}
        self.driven = Driven(speech, self._made, max_windows, max_new_windows)

    def admit(self, key: str, script: Iterable[Urgency] = (), num_windows: int = 100) -> None:
        self.scripts[key] = deque(script)
        clips = tuple((place * 0.4, place * 0.4 + 0.4) for place in range(num_windows))
        options = replace(GREEDY, conditions_on_previous=False, clips=clips)
        self.driven.admit(request(Sound.of(noise(num_windows * 0.4)), options, key=key), max_bytes=1 << 24)
        while self.driven.workload._listen(self.driven):
            pass

    def until_heard(self, number: int) -> list[str]:
        self.driven.until(lambda: len(self.heard) >= number)
        return self.heard

    def _made(self, wanted: SpeechRequest, loaded: LoadedSpeech, clock: Callable[[], float]) -> Transcriber:
        made = Scripted(wanted, loaded, clock)
        made.heard, made.script = self.heard, self.scripts[wanted.key]
        return made


@pytest.mark.parametrize("urgency", [Urgency.PAUSING, Urgency.OVER])
def test_a_final_is_heard_next_and_nothing_is_heard_until_it_is_written(speech: LoadedSpeech, urgency: Urgency):
    house = Playhouse(speech)
    house.admit("f", [Urgency.PATIENT] * 50)
    for key in "abc":
        house.admit(key, [Urgency.SPEAKING] * 50)
    house.admit("s")
    num_before = len(house.until_heard(5))
    house.scripts["s"].append(urgency)
    house.driven.tick_once()
    assert house.heard[num_before:] == [f"s{urgency.name[0]}"]
    (window,) = house.driven.workload._tasks["s"].windows
    num_steps = 1
    while house.driven.workload._tasks["s"].windows:
        house.driven.tick_once()
        num_steps += 1
    assert (len(house.heard), num_steps) == (num_before + 1, window.num_steps)
    assert num_steps > 3
    house.driven.tick_once()
    assert len(house.heard) == num_before + 2


@pytest.mark.parametrize("finals", ["x", "xy"])
def test_a_final_shares_its_pass_with_finals_alone(speech: LoadedSpeech, finals: str):
    house = Playhouse(speech, max_new_windows=2)
    for key in "abc":
        house.admit(key, [Urgency.SPEAKING] * 5)
    for key in finals:
        house.admit(key, [Urgency.OVER])
    house.driven.tick_once()
    assert house.heard == [f"{key}O" for key in finals]


@pytest.mark.parametrize("max_windows", [2, 4])
def test_the_last_place_is_for_a_final_while_somebody_listens(speech: LoadedSpeech, max_windows: int):
    house = Playhouse(speech, max_windows)
    house.admit("s")
    for place in range(6):
        house.admit(f"f{place}", [Urgency.PATIENT] * 50)
    for _ in range(20):
        house.driven.tick_once()
        assert house.driven.workload.counts().cache_bytes <= (max_windows - 1) * speech.window_bytes
    num_before = len(house.heard)
    house.scripts["s"].append(Urgency.OVER)
    house.driven.tick_once()
    assert house.heard[num_before:] == ["sO"]


@pytest.mark.parametrize(
    ("listening", "patience"), [(Urgency.SPEAKING, PATIENCE), (Urgency.OVER, LAST_PATIENCE)], ids=str
)
def test_a_file_is_heard_although_somebody_always_listens(speech: LoadedSpeech, listening: Urgency, patience: int):
    house = Playhouse(speech)
    house.admit("f", [Urgency.PATIENT] * 50)
    for key in "abcdefg"[:5]:
        if key != "f":
            house.admit(key, [listening] * 50)
    heard = house.until_heard(4 * (patience + 1))
    assert heard.count("fP") >= 3
    gaps = [len(between.split()) for between in " ".join(heard).split("fP")]
    assert max(gaps) <= patience + 1
