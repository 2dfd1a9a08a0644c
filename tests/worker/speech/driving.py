"""A speech workload that a test ticks by hand, over a tiny random Whisper or windows that say what a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.step import NumericPath
from models.whisper.audio import LogMel
from models.whisper.folder import open_whisper
from models.whisper.loading import load_whisper
from models.whisper.session import Session
from tests.support.tiny_whisper import write_mlx
from tests.worker.ticking import Ticked
from worker.audio.pcm import SAMPLE_RATE_HZ, Floats
from worker.audio.recording import Recording
from worker.events import Event, Failed, SpeechSegment
from worker.speech.bounds import SpeechBounds
from worker.speech.hearing import Transcriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions
from worker.speech.request import SpeechRequest
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload

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


def s16(samples: Floats) -> bytes:
    """Return samples as they come over the wire."""
    return (samples * 32_000).astype("<i2").tobytes()


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


class Driven(Ticked[SpeechRequest, SpeechWorkload]):
    """Ticks a workload and keeps what it tells; see `Ticked`."""

    def __init__(
        self,
        speech: LoadedSpeech,
        make: Callable[[SpeechRequest, LoadedSpeech, Callable[[], float]], Transcriber] = make_transcriber,
        max_rows: int = 8,
        max_new_windows: int = 2,
    ) -> None:
        bounds = SpeechBounds(max_rows, 1 << 30, max_new_windows)
        super().__init__(lambda clock: SpeechWorkload(lambda _: speech, make, bounds, clock=clock))

    def transcribe(self, wanted: SpeechRequest) -> list[Event]:
        """Run one request to its end."""
        self.admit(wanted)
        self.until(lambda: wanted.key not in self.jobs)
        return self.events[wanted.key]


def segments(events: Sequence[Event]) -> list[SpeechSegment]:
    return [event for event in events if isinstance(event, SpeechSegment)]


def failure(events: Sequence[Event]) -> Exception:
    (found,) = [event.error for event in events if isinstance(event, Failed)]
    return found
