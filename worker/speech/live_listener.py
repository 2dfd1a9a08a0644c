"""Listens to a recording while it comes: where its utterances begin and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from worker.audio.pcm import Floats
from worker.audio.recording import Recording
from worker.speech.live_turns import CHUNK, Turns

_CHUNKS_A_CALL = 160  # 5 seconds
_MIN_SILENT_CHUNKS = 16
_HELD_BACK = 2000  # samples that a resampler may keep until more follow, and after a finalization nothing may
_SILENT_CHUNKS_A_CALL = 1 << 11  # a good minute


class Detector(Protocol):
    """Tells how likely it is that somebody speaks; remembers what it was told before."""

    def probabilities(self, samples: Floats) -> Floats:
        """Return one for each 512 samples; their number is a multiple of that."""
        ...


class Listener:
    """Judges one recording.

    Silence that is skipped rather than recorded costs next to nothing.

    Args:
        recording: what comes.
        new_detector: makes a detector that was told nothing.
        end_silence: samples of silence that end an utterance.

    Attributes:
        turns: what was found.
        is_finished: whether all of it is judged and no more comes.
    """

    def __init__(self, recording: Recording, new_detector: Callable[[], Detector], end_silence: int) -> None:
        self.turns = Turns(end_silence)
        self.is_finished = False
        self._recording = recording
        self._new_detector = new_detector
        self._detector = new_detector()
        self._finalizations: deque[int] = deque()

    @property
    def received(self) -> int:
        """Samples that came."""
        return self._recording.num_samples

    @property
    def position(self) -> int:
        """Samples that are judged."""
        return min(self.turns.position, self.received)

    @property
    def is_finalizing(self) -> bool:
        """Whether it has not come to where an utterance is to be ended."""
        return bool(self._finalizations)

    def finalize(self, place: int) -> None:
        """End the utterance that is spoken at a sample; to be called in the order of places."""
        self._finalizations.append(place)

    def listen(self) -> bool:
        """Judge some of what came, in parts where utterances are to be ended; return whether there was anything."""
        stop = self.turns.position + _CHUNKS_A_CALL * CHUNK
        has_listened = False
        while self.turns.position < stop and self._listen_once():
            has_listened = True
        return has_listened

    def _listen_once(self) -> bool:
        is_all = self._recording.is_complete  # asked first: what is complete does not grow
        received = self.received
        limit = min(received, self._finalizations[0]) if self._finalizations else received
        num_chunks = (limit - self.turns.position) // CHUNK
        if num_chunks > 0:
            self._judge(num_chunks)
        elif self._finalizations and self._finalizations[0] <= received + _HELD_BACK:
            self.turns.finalize(min(self._finalizations.popleft(), received))
        elif is_all and not self.is_finished:
            self._finish(received)
        else:
            return False
        return True

    def _judge(self, num_chunks: int) -> None:
        """Judge so many chunks, or as many of them as one call may take."""
        samples = self._samples(min(num_chunks, _SILENT_CHUNKS_A_CALL))
        is_sound = samples != 0
        num_silent = (int(is_sound.argmax()) if is_sound.any() else len(samples)) // CHUNK
        if num_silent >= _MIN_SILENT_CHUNKS:
            self.turns.pass_silence(num_silent)
            self._detector = self._new_detector()
        else:
            self._judge_samples(samples[: _CHUNKS_A_CALL * CHUNK])

    def _judge_samples(self, samples: Floats) -> None:
        for probability in self._detector.probabilities(samples).tolist():
            self.turns.judge(probability)

    def _samples(self, num_chunks: int) -> Floats:
        start = self.turns.position
        return self._recording.read(start, start + num_chunks * CHUNK)

    def _finish(self, num_samples: int) -> None:
        rest = self._samples(1)
        if len(rest):
            self._judge_samples(np.pad(rest, (0, CHUNK - len(rest))))
        self.turns.finish(num_samples)
        self.is_finished = True
