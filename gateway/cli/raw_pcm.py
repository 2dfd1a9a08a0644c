"""Samples without a container: what `--pcm` says of them."""

from dataclasses import dataclass

from pomona.v1 import transcription_pb2

from gateway.cli.failures import UsageError
from gateway.cli.fields import checked
from gateway.cli.suggestions import suggestion

EXAMPLE = "s16le:16000:1"
MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 48_000
MAX_CHANNELS = 8
# No number of more digits is within a range; one of thousands could not even be read.
_MAX_DIGITS = 9
_PCM = transcription_pb2.RawPcm
# The encoding and the bytes of a sample.
ENCODINGS = {
    "s16le": (_PCM.ENCODING_S16_LE, 2),
    "f32le": (_PCM.ENCODING_F32_LE, 4),
    "mulaw": (_PCM.ENCODING_MULAW, 1),
    "alaw": (_PCM.ENCODING_ALAW, 1),
}


@dataclass(frozen=True, slots=True)
class PcmFormat:
    """How raw samples are written: `encoding` is a name of ENCODINGS, channels are interleaved."""

    encoding: str
    sample_rate_hz: int
    channel_count: int

    @property
    def frame_bytes(self) -> int:
        """The bytes of one sample of every channel."""
        return ENCODINGS[self.encoding][1] * self.channel_count

    def seconds(self, num_bytes: int) -> float:
        """Return how long so many bytes sound."""
        return num_bytes / (self.frame_bytes * self.sample_rate_hz)

    def message(self) -> transcription_pb2.RawPcm:
        """Return the format as a request has it."""
        return _PCM(
            encoding=ENCODINGS[self.encoding][0],
            sample_rate_hz=self.sample_rate_hz,
            channel_count=self.channel_count,
        )


def parse_pcm(text: str) -> PcmFormat:
    """Read ENCODING:RATE:CHANNELS; without channels there is one.

    Raises:
        UsageError: it is none, or of rates or channels that are not heard.
    """
    encoding, _, rest = text.partition(":")
    if encoding not in ENCODINGS:
        there_are = f"there are: {', '.join(ENCODINGS)}{suggestion(encoding, list(ENCODINGS))}"
        raise UsageError(f"--pcm: no encoding is named {encoding!r}; {there_are}")
    rate, colon, channels = rest.partition(":")
    numbers = (rate, channels if colon else "1")
    if not all(each.isascii() and each.isdigit() and len(each) <= _MAX_DIGITS for each in numbers):
        raise UsageError(f"--pcm: {text!r} is not ENCODING:RATE:CHANNELS, such as {EXAMPLE}")
    return PcmFormat(
        encoding,
        sample_rate_hz=checked("--pcm: RATE", int(numbers[0]), MAX_RATE_HZ, MIN_RATE_HZ),
        channel_count=checked("--pcm: CHANNELS", int(numbers[1]), MAX_CHANNELS, 1),
    )
