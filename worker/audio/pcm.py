"""Raw samples as they come over the wire, in pieces of any size, to floats at the rate that models hear.

Source of the companded codes: ITU-T G.711.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import soxr
from numpy.typing import NDArray

from worker.audio.errors import AudioTooLong

SAMPLE_RATE_HZ = 16_000
Floats = NDArray[np.float32]


class Encoding(Enum):
    """How a sample is written; the value is its bytes."""

    S16_LE = ("s16", 2)
    F32_LE = ("f32", 4)
    MULAW = ("mulaw", 1)
    ALAW = ("alaw", 1)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return self.value[1]


class PcmDecoder:
    """Turns bytes into samples of 16,000 a second.

    Args:
        encoding: of each sample.
        rate_hz: how many a second for each channel.
        num_channels: interleaved.
        mixes: whether the channels become one, their mean.
        max_s: seconds that may be decoded.
    """

    def __init__(self, encoding: Encoding, rate_hz: int, num_channels: int, *, mixes: bool, max_s: float) -> None:
        self._encoding = encoding
        self._num_channels = num_channels
        self._mixes = mixes
        self._rate_hz = rate_hz
        self._max_s = max_s
        self._num_frames = 0
        self._rest = b""
        self._table = _table(encoding)
        heard = 1 if mixes else num_channels
        self._resampler = (
            None if rate_hz == SAMPLE_RATE_HZ else soxr.ResampleStream(rate_hz, SAMPLE_RATE_HZ, heard, dtype="float32")
        )

    def decode(self, chunk: bytes, *, is_last: bool = False) -> Floats:
        """Return what can be heard of the bytes so far.

        Args:
            chunk: any number of bytes; half a sample waits for its other half.
            is_last: whether no more come; half a sample at the end is dropped.

        Returns:
            [S, channels], or [S, 1] mixed, each within -1 to 1 if the bytes are; what is no number is 0.

        Raises:
            AudioTooLong: there is more than may be.
        """
        raw = self._rest + chunk
        frame_bytes = self._encoding.sample_bytes * self._num_channels
        whole = len(raw) - len(raw) % frame_bytes
        self._rest = raw[whole:]
        samples = self._samples(raw[:whole]).reshape(-1, self._num_channels)
        self._num_frames += len(samples)
        if self._num_frames > self._max_s * self._rate_hz:
            raise AudioTooLong(self._max_s)
        if self._mixes:
            samples = samples.mean(axis=1, keepdims=True, dtype=np.float32)
        if self._resampler is None:
            return samples
        return self._resampler.resample_chunk(samples, last=is_last).reshape(-1, samples.shape[1])

    def _samples(self, raw: bytes) -> Floats:
        if self._table is not None:
            return self._table[np.frombuffer(raw, np.uint8)]
        if self._encoding is Encoding.S16_LE:
            return (np.frombuffer(raw, "<i2") / np.float32(32768)).astype(np.float32)
        return np.nan_to_num(np.frombuffer(raw, "<f4").astype(np.float32), nan=0.0, posinf=1.0, neginf=-1.0)


def _table(encoding: Encoding) -> Floats | None:
    """Return the value of each code, of codes that are companded."""
    codes = np.arange(256)
    if encoding is Encoding.MULAW:
        inverted = ~codes & 0xFF
        size = (((inverted & 0x0F) << 3) + 0x84) << ((inverted >> 4) & 7)
        values = np.where(inverted & 0x80, 0x84 - size, size - 0x84)
    elif encoding is Encoding.ALAW:
        toggled = codes ^ 0x55
        step, segment = (toggled & 0x0F) << 4, (toggled >> 4) & 7
        size = np.where(segment == 0, step + 8, (step + 0x108) << np.maximum(segment - 1, 0))
        values = np.where(toggled & 0x80, size, -size)
    else:
        return None
    return (values / 32768).astype(np.float32)
