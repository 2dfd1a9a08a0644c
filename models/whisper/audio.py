"""Turns speech into the log-mel picture that Whisper reads.

Source: Radford et al. 2022, arXiv:2212.04356, section 2.2; mel scale and filters: Slaney 1998, Auditory Toolbox,
Interval Research technical report 1998-010.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

SAMPLE_RATE_HZ = 16_000
HOP_SAMPLES = 160  # 10 ms
WINDOW_SAMPLES = 400  # 25 ms
FRAMES_PER_SECOND = SAMPLE_RATE_HZ // HOP_SAMPLES
WINDOW_SECONDS = 30
_FLOOR = 1e-10
_RANGE_DECADES = 8.0  # what lies further below the loudest is cut off
_LINEAR_HZ_PER_MEL = 200 / 3  # below 1 kHz
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27  # above: 27 mels are a factor of 6.4


class LogMel:
    """Makes pictures of one number of mel bands.

    Args:
        num_bands: 80, or 128 for large-v3 and what comes of it.
    """

    def __init__(self, num_bands: int) -> None:
        self._filters = mx.array(mel_filters(num_bands))  # [M, 201]
        self._window = mx.array(np.hanning(WINDOW_SAMPLES + 1)[:-1].astype(np.float32))

    def __call__(self, samples: mx.array, num_padding: int = 0) -> mx.array:
        """Turn speech into a picture.

        The scale hangs on the loudest point of the whole, so parts of a recording differ from the whole's.

        Args:
            samples: float32 [S], mono, 16,000 a second, each within -1 to 1; at least 201 with the padding.
            num_padding: samples of silence to add at the end.

        Returns:
            float32 [(S + num_padding) // 160, M]: a row for every 10 ms, a column for every mel band.

        Raises:
            ValueError: `samples` has more than one dimension or is too short.
        """
        if samples.ndim != 1 or samples.size + num_padding <= WINDOW_SAMPLES // 2:
            raise ValueError(f"a row of at least {WINDOW_SAMPLES // 2 + 1} samples is needed")
        if num_padding > 0:
            samples = mx.pad(samples, (0, num_padding))
        power = mx.square(mx.abs(self._spectra(samples)[:-1]))  # [F, 201]
        energies = power @ self._filters.T  # [F, 201] -> [F, M]
        decades = mx.log10(mx.maximum(energies, _FLOOR))
        decades = mx.maximum(decades, mx.max(decades) - _RANGE_DECADES)
        return (decades + 4.0) / 4.0

    def _spectra(self, samples: mx.array) -> mx.array:
        """Return complex64 [F + 1, 201]: one for every window, the first in the middle of the first sample."""
        margin = WINDOW_SAMPLES // 2
        mirrored = mx.concatenate([samples[1 : margin + 1][::-1], samples, samples[-margin - 1 : -1][::-1]])
        num_windows = samples.size // HOP_SAMPLES + 1
        windows = mx.as_strided(mirrored, (num_windows, WINDOW_SAMPLES), (HOP_SAMPLES, 1))
        return mx.fft.rfft(windows * self._window)


def pad_frames(frames: mx.array, num_frames: int) -> mx.array:
    """Return [num_frames, M]: cut, or filled up with zeros."""
    missing = num_frames - frames.shape[0]
    return mx.pad(frames, [(0, missing), (0, 0)]) if missing > 0 else frames[:num_frames]


def mel_filters(num_bands: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return triangles of equal area, evenly spaced in mels from 0 Hz to half the sample rate.

    Returns:
        float32 [num_bands, 201]: how much of each frequency of a 400-sample window a band takes.
    """
    frequencies = np.linspace(0, SAMPLE_RATE_HZ / 2, 1 + WINDOW_SAMPLES // 2)
    edges = _hertz(np.linspace(0.0, _mels(SAMPLE_RATE_HZ / 2), num_bands + 2))
    widths = np.diff(edges)
    distances = edges[:, None] - frequencies  # [num_bands + 2, 201]
    rising = -distances[:-2] / widths[:-1, None]
    falling = distances[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    areas = 2.0 / (edges[2:] - edges[:-2])
    return (triangles * areas[:, None]).astype(np.float32)


def _mels(hertz: float) -> float:
    """Return the mels of a frequency above the break."""
    return _BREAK_MEL + math.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mels: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels >= _BREAK_MEL, above, mels * _LINEAR_HZ_PER_MEL)
