"""Audio for which goldens are stored: spoken clips, and what is no speech."""

import wave
from pathlib import Path

import numpy as np

RECORDINGS = Path(__file__).parents[1] / "whisper" / "recordings"
SPOKEN = ("austen_0880", "goforward")
CLIPS = (*SPOKEN, "silence", "noise", "chord", "loud")
SAMPLE_RATE_HZ = 16_000


def sound(clip: str) -> np.ndarray:
    """Return float32 [S], 16,000 a second."""
    times = np.arange(3 * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    if clip == "silence":
        return np.zeros(len(times), np.float32)
    if clip == "noise":
        return (0.1 * np.random.default_rng(0).standard_normal(len(times))).astype(np.float32)
    if clip == "chord":
        return (0.1 * np.sin(2 * np.pi * np.outer([220, 277.2, 329.6], times)).sum(axis=0)).astype(np.float32)
    if clip == "loud":  # an odd length, and past what is allowed
        return (4 * spoken("goforward"))[:-123]
    return spoken(clip)


def spoken(clip: str) -> np.ndarray:
    with wave.open(str(RECORDINGS / f"{clip}.wav")) as file:
        return (np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768).astype(np.float32)
