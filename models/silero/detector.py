"""Finds speech in one recording while it comes."""

from __future__ import annotations

import numpy as np

from models.silero.model import CHUNK_SAMPLES, CONTEXT_SAMPLES, Floats, Silero, empty_state

_MAX_CHUNKS = 512  # at once: bounds memory, and is long enough to be fast


class SpeechDetector:
    """Turns the samples of one recording into probabilities, in pieces of any size.

    It is for the thread that reads the recording, which is the engine's: a second of audio costs it about a
    millisecond, so an hour is to be given in parts between other work. One thread at a time may use it.

    Args:
        silero: the weights, which detectors share.
    """

    def __init__(self, silero: Silero) -> None:
        self._silero = silero
        self._state = empty_state()
        self._held = np.zeros(CONTEXT_SAMPLES, np.float32)  # the context, and what makes no chunk yet

    def probabilities(self, samples: Floats) -> Floats:
        """Return how likely speech is in each chunk that is complete.

        Args:
            samples: float32 [S], mono, 16,000 a second: those that follow the ones before.

        Returns:
            float32 [chunks], 0 to 1: one for every 512 samples, the chunks following those before.
        """
        joined = np.concatenate([self._held, samples])
        num_chunks = (len(joined) - CONTEXT_SAMPLES) // CHUNK_SAMPLES
        found = np.empty(num_chunks, np.float32)
        for first in range(0, num_chunks, _MAX_CHUNKS):
            last = min(first + _MAX_CHUNKS, num_chunks)
            part = joined[first * CHUNK_SAMPLES : last * CHUNK_SAMPLES + CONTEXT_SAMPLES]
            found[first:last] = self._silero.probabilities(part, self._state)
        self._held = joined[num_chunks * CHUNK_SAMPLES :].copy()
        return found

    def finish(self) -> Floats:
        """Return the probability of what is left, with silence behind it.

        Returns:
            float32 [1], or [0] where nothing is left.
        """
        missing = -(len(self._held) - CONTEXT_SAMPLES) % CHUNK_SAMPLES
        return self.probabilities(np.zeros(missing, np.float32))
