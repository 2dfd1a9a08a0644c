"""A speech workload that a test ticks by hand, over a tiny random Whisper or windows that say what a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from models.step import NumericPath
from models.whisper.audio import LogMel
from models.whisper.folder import open_whisper
from models.whisper.loading import load_whisper
from models.whisper.session import Session
from tests.support.tiny_whisper import write_mlx
from worker.audio.pcm import SAMPLE_RATE_HZ, Floats
from worker.audio.recording import Recording
from worker.events import Completed, Event, Failed, SpeechSegment, Usage
from worker.job import Job
from worker.outbox import Outbox
from worker.speech.bounds import SpeechBounds
from worker.speech.hearing import Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.request import SpeechRequest
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload

T = TypeVar("T")
MAX_TICKS = 5_000
TICK_S = 0.001
# One try of the likeliest tokens: what a random model says passes no threshold.
GREEDY = SpeechOptions(temperatures=(0.0,), languages=("en",), filters_voice=False)


class LoudnessDetector:
    """Takes what is loud for speech."""

    def __init__(self) -> None:
        self._held = silence(0)

    def probabilities(self, samples: Floats) -> Floats:
        held = np.concatenate([self._held, samples])
        whole = len(held) - len(held) % 512
        self._held = held[whole:]
        peaks = np.abs(held[:whole]).reshape(-1, 512).max(axis=1)
        return np.where(peaks > 0.1, 0.9, 0.05).astype(np.float32)

    def finish(self) -> Floats:
        return self.probabilities(np.zeros(-len(self._held) % 512, np.float32))


def tiny_speech(folder: Path, **sizes: int) -> LoadedSpeech:
    """Return a tiny random model, whose windows are 0.4 seconds unless sizes say otherwise."""
    return loaded_speech(write_mlx(folder, sizes=sizes))


def loaded_speech(folder: Path, path: NumericPath = NumericPath.FAST) -> LoadedSpeech:
    """Load a checkpoint; on the thread that will run it."""
    whisper = load_whisper(open_whisper(folder), path, lambda *_: None)
    session = Session(whisper.model, is_reference=path is NumericPath.REFERENCE)
    return LoadedSpeech(whisper, session, LogMel(whisper.model.config.n_mels), LoudnessDetector)


def noise(seconds: float, seed: int = 0) -> Floats:
    """Return loud noise."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * SAMPLE_RATE_HZ)).astype(np.float32)


def silence(seconds: float) -> Floats:
    return np.zeros(round(seconds * SAMPLE_RATE_HZ), np.float32)


@dataclass
class Sound:
    """Audio of a request, in memory."""

    recordings: Sequence[Recording]

    @classmethod
    def of(cls, *channels: Floats, is_complete: bool = True) -> Sound:
        """Return a recording for each channel."""
        recordings = [Recording() for _ in channels]
        for recording, samples in zip(recordings, channels, strict=True):
            recording.append(samples)
            if is_complete:
                recording.end()
        return cls(recordings)

    def append(self, *channels: Floats, is_last: bool = False) -> None:
        for recording, samples in zip(self.recordings, channels, strict=True):
            recording.append(samples)
            if is_last:
                recording.end()


def request(sound: Sound, options: SpeechOptions = GREEDY, *, key: str = "r", is_whole: bool = True) -> SpeechRequest:
    return SpeechRequest(key, options, sound, is_whole=is_whole, key=key)


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Driven:
    """Ticks a workload and keeps what it tells.

    Attributes:
        events: of each request by its key, as posted.
    """

    speech: LoadedSpeech
    make: Callable[[SpeechRequest, LoadedSpeech, Callable[[], float]], Transcriber] = make_transcriber
    max_windows: int = 8
    max_new_windows: int = 2
    clock: Clock = field(default_factory=Clock)
    events: dict[str, list[Event]] = field(default_factory=dict[str, list[Event]])
    jobs: dict[str, Job[SpeechRequest]] = field(default_factory=dict[str, Job[SpeechRequest]])

    def __post_init__(self) -> None:
        self.workload = SpeechWorkload(
            lambda _: self.speech,
            self.make,
            SpeechBounds(self.max_windows, 1 << 30, self.max_new_windows),
            clock=self.clock,
        )
        self.workload.load(lambda _: None)

    def admit(self, wanted: SpeechRequest, max_bytes: int = 1 << 20) -> None:
        job = Job(wanted, Outbox(max_bytes), self.clock())
        self.jobs[wanted.key] = job
        self.events[wanted.key] = []
        self.workload.admit(job)

    def cancel(self, key: str) -> Usage:
        del self.jobs[key]
        return self.workload.drop(key)

    def tick_once(self) -> bool:
        """Do one tick; return whether there was any."""
        self.clock.now += TICK_S
        plan = self.workload.plan()
        if plan is None:
            return False
        self.workload.run(plan, self)
        return True

    def until(self, predicate: Callable[[], bool]) -> None:
        """Tick until something holds; a second look, as a wake-up has the engine take, before nothing moves."""
        idle = 0
        for _ in range(MAX_TICKS):
            if predicate():
                return
            idle = 0 if self.tick_once() else idle + 1
            assert idle < 3, f"nothing moves {', '.join(self.jobs)}"
        raise AssertionError(f"{', '.join(self.jobs)} never end")

    def finish(self) -> None:
        """Tick until all requests have ended."""
        self.until(lambda: not self.jobs)

    def transcribe(self, wanted: SpeechRequest) -> list[Event]:
        """Run one request to its end."""
        self.admit(wanted)
        self.until(lambda: wanted.key not in self.jobs)
        return self.events[wanted.key]

    # What a workload reports to.

    def post(self, job: Job[SpeechRequest], event: Event) -> None:
        assert self.jobs.get(job.request.key) is job, f"{event} after the end"
        job.outbox.charge(event)
        job.outbox.put(event)
        self.events[job.request.key].append(event)
        if isinstance(event, Completed | Failed):
            del self.jobs[job.request.key]

    def flush(self) -> None: ...

    def tick(self) -> None: ...

    def aside(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(work())
        return future


def segments(events: Sequence[Event]) -> list[SpeechSegment]:
    return [event for event in events if isinstance(event, SpeechSegment)]


def failure(events: Sequence[Event]) -> Exception:
    (found,) = [event.error for event in events if isinstance(event, Failed)]
    return found
