"""Raw samples as they come over the wire, in pieces of any size, to floats at the rate that models hear.

Source of the companded codes: ITU-T G.711.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import soxr
from numpy.typing import NDArray

from worker.audio.limits import AudioMeter

SAMPLE_RATE_HZ = 16_000
MIN_RATE_HZ = 8000
MAX_RATE_HZ = 48_000
MAX_CHANNELS = 8
Floats = NDArray[np.float32]


class Encoding(Enum):
    """How a sample is written; the value is its name and its bytes."""

    S16_LE = ("s16", 2)
    F32_LE = ("f32", 4)
    MULAW = ("mulaw", 1)
    ALAW = ("alaw", 1)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class PcmFormat:
    """How raw samples are written.

    Attributes:
        encoding: of each sample.
        rate_hz: how many a second for each channel, 8,000 to 48,000.
        num_channels: interleaved, 1 to 8.

    Raises:
        ValueError: a number is out of its range.
    """

    encoding: Encoding
    rate_hz: int
    num_channels: int

    def __post_init__(self) -> None:
        if not MIN_RATE_HZ <= self.rate_hz <= MAX_RATE_HZ:
            raise ValueError(f"a rate is {MIN_RATE_HZ} to {MAX_RATE_HZ} samples a second")
        if not 1 <= self.num_channels <= MAX_CHANNELS:
            raise ValueError(f"there are 1 to {MAX_CHANNELS} channels")

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.encoding.sample_bytes * self.num_channels


class PcmDecoder:
    """Turns bytes into samples of 16,000 a second, and keeps the clock.

    Args:
        pcm: how they are written.
        mixes: whether the channels become one, their mean.
        meter: counts what is decoded and refuses what is too much.
    """

    def __init__(self, pcm: PcmFormat, *, mixes: bool, meter: AudioMeter) -> None:
        self._pcm = pcm
        self._mixes = mixes
        self._meter = meter
        self._rest = b""
        self._table = _table(pcm.encoding)
        self._resampler = self._new_resampler()
        self._clock_s = 0.0
        self._num_samples = 0

    @property
    def num_channels(self) -> int:
        """Channels that come out."""
        return 1 if self._mixes else self._pcm.num_channels

    def decode(self, chunk: bytes) -> Floats:
        """Return what can be heard of the bytes so far.

        Args:
            chunk: any number of bytes; a part of a frame waits for the other.

        Returns:
            [S, channels]; see `sound_floats`.

        Raises:
            AudioTooLong: there is more than may be.
            AudioTooLarge: there is more than may be.
        """
        raw = self._rest + chunk
        whole = len(raw) - len(raw) % self._pcm.frame_bytes
        self._rest = raw[whole:]
        self._meter.count_frames(whole // self._pcm.frame_bytes, self._pcm.num_channels, self._pcm.rate_hz)
        self._clock_s += whole / self._pcm.frame_bytes / self._pcm.rate_hz
        samples = self._samples(raw[:whole]).reshape(-1, self._pcm.num_channels)
        if self._mixes:
            samples = samples.mean(axis=1, keepdims=True, dtype=np.float32)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples).reshape(-1, self.num_channels)
        self._num_samples += len(samples)
        return samples

    def flush(self) -> Floats:
        """Return what the resampler still held, up to the clock; a part of a frame is dropped.

        Returns:
            [S, channels].
        """
        self._rest = b""
        missing = max(round(self._clock_s * SAMPLE_RATE_HZ) - self._num_samples, 0)
        samples = np.zeros((0, self.num_channels), np.float32)
        if self._resampler is not None and missing:
            samples = self._resampler.resample_chunk(samples, last=True).reshape(-1, self.num_channels)[:missing]
            self._resampler = self._new_resampler()
        self._num_samples += len(samples)
        return samples

    def skip(self, seconds: float) -> int:
        """Move the clock on; what was held is to be flushed before.

        Returns:
            Samples of silence that bring the recording to the clock.

        Raises:
            AudioTooLong: there is more than may be.
        """
        self._meter.count_seconds(seconds)
        self._clock_s += seconds
        num_skipped = max(round(self._clock_s * SAMPLE_RATE_HZ) - self._num_samples, 0)
        self._num_samples += num_skipped
        return num_skipped

    def _new_resampler(self) -> soxr.ResampleStream | None:
        if self._pcm.rate_hz == SAMPLE_RATE_HZ:
            return None
        return soxr.ResampleStream(self._pcm.rate_hz, SAMPLE_RATE_HZ, self.num_channels, dtype="float32")

    def _samples(self, raw: bytes) -> Floats:
        if self._table is not None:
            return self._table[np.frombuffer(raw, np.uint8)]
        if self._pcm.encoding is Encoding.S16_LE:
            return (np.frombuffer(raw, "<i2") / np.float32(32768)).astype(np.float32)
        return sound_floats(np.frombuffer(raw, "<f4").astype(np.float32))


def sound_floats(samples: Floats) -> Floats:
    """Return samples within -1 to 1, as models hear them: what is louder is cut off there, what is no number is 0."""
    if not len(samples) or np.abs(samples).max() <= 1.0:  # not so where there is one that is none
        return samples
    return np.clip(np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)


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
