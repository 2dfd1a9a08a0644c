"""How much audio one request may bring, counted while it comes."""

from __future__ import annotations

from dataclasses import dataclass

from worker.audio.errors import AudioTooLarge, AudioTooLong

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """Bounds of one request.

    Attributes:
        max_s: seconds of audio, skipped ones too; infinity where there is no end to it.
        max_bytes: as they come over the wire.
        max_decoded_bytes: floats of all channels at the rate of the audio, before it is resampled: bounds the work. An
            hour of two channels at 48,000 a second is 1.4 GB. (What is kept is 64,000 bytes a second of a recording.)
    """

    max_s: float
    max_bytes: int
    max_decoded_bytes: int


class AudioMeter:
    """Counts what came and what was decoded.

    Args:
        limits: none of it may be passed.
    """

    def __init__(self, limits: AudioLimits) -> None:
        self._limits = limits
        self._num_bytes = 0
        self._decoded_bytes = 0
        self._seconds = 0.0

    def count_bytes(self, num_bytes: int) -> None:
        """Count what came over the wire.

        Raises:
            AudioTooLarge: it is more than may come.
        """
        self._num_bytes += num_bytes
        if self._num_bytes > self._limits.max_bytes:
            raise AudioTooLarge(self._limits.max_bytes)

    def count_frames(self, num_frames: int, num_channels: int, rate_hz: int) -> None:
        """Count what was decoded, before anything is made of it.

        Raises:
            AudioTooLong: there are more seconds than may be.
            AudioTooLarge: there are more bytes than may be.
        """
        self.count_seconds(num_frames / rate_hz)
        self._decoded_bytes += num_frames * num_channels * _FLOAT_BYTES
        if self._decoded_bytes > self._limits.max_decoded_bytes:
            raise AudioTooLarge(self._limits.max_decoded_bytes, is_decoded=True)

    def count_seconds(self, seconds: float) -> None:
        """Count seconds that need no decoding.

        Raises:
            AudioTooLong: there are more than may be.
        """
        self._seconds += seconds
        # Seconds are a sum of quotients: a thousandth of a sample more is none.
        if self._seconds > self._limits.max_s + 1e-7:
            raise AudioTooLong(self._limits.max_s)
