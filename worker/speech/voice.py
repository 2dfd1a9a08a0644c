"""Where somebody speaks in a recording of a file, found while it comes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Protocol

from worker.audio.pcm import Floats
from worker.audio.speech import CHUNK_SAMPLES, SpeechRules, SpeechTimeline

# Less speech than so at the edge of a time that a model told is none of it: there it is only inexact.
EDGE_S = 0.1
# Behind so much of nothing at all a detector knows as little as a new one.
MIN_SILENCE = 16 * CHUNK_SAMPLES


class Detector(Protocol):
    """Tells how likely it is that somebody speaks; remembers what it was told before."""

    def probabilities(self, samples: Floats) -> Floats:
        """Return one for each 512 samples that are complete."""
        ...

    def finish(self) -> Floats:
        """Return one for what is left."""
        ...


class Voice:
    """Finds speech in samples that come one after the other; silence that is skipped costs next to nothing.

    Args:
        new_detector: makes a detector that was told nothing.
    """

    def __init__(self, new_detector: Callable[[], Detector]) -> None:
        self._new_detector = new_detector
        self._detector = new_detector()
        self._timeline = SpeechTimeline(SpeechRules())
        self._num_samples = 0

    @property
    def speech_s(self) -> float:
        """Seconds of speech so far."""
        return self._timeline.speech_s

    def hear(self, samples: Floats) -> None:
        """Take the next samples."""
        num_before = -self._num_samples % CHUNK_SAMPLES  # of a chunk that has begun
        self._num_samples += len(samples)
        if len(samples) - num_before < MIN_SILENCE or samples.any():
            self._timeline.add(self._detector.probabilities(samples))
            return
        self._timeline.add(self._detector.probabilities(samples[:num_before]))
        num_silent = (len(samples) - num_before) // CHUNK_SAMPLES
        self._timeline.add(repeat(0.0, num_silent))
        self._detector = self._new_detector()
        self._timeline.add(self._detector.probabilities(samples[num_before + num_silent * CHUNK_SAMPLES :]))

    def end(self, duration_s: float) -> None:
        """Take note that no more come after so many seconds."""
        self._timeline.add(self._detector.finish())
        self._timeline.finish(duration_s)

    def next_speech(self, start_s: float, end_s: float) -> float | None:
        """Return where speech begins between two seconds, `start_s` where it has begun; None where there is none."""
        found = self._timeline.next_speech(start_s)
        return None if found is None or found >= end_s else found

    def is_speech(self, start_s: float, end_s: float) -> bool:
        """Whether somebody speaks between two seconds, and not only at their edges."""
        edge_s = min(EDGE_S, (end_s - start_s) / 4)
        return self._timeline.overlaps(start_s + edge_s, end_s - edge_s)

    def forget(self, before_s: float) -> None:
        """Let go of what was found before a moment."""
        self._timeline.forget(before_s)
