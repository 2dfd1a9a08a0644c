"""Audio in a container (WAV, FLAC, MP3, Ogg, MP4, WebM) to floats at the rate that models hear, in a stream.

Containers that name other files or addresses, such as playlists, are not opened: only listed formats are, with listed
decoders, and they may open nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, cast

import av
import av.frame
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError

from worker.audio.errors import AudioUnreadable
from worker.audio.limits import AudioMeter
from worker.audio.pcm import MAX_CHANNELS, SAMPLE_RATE_HZ, Floats, sound_floats

if TYPE_CHECKING:
    from av.audio.codeccontext import AudioCodecContext

FORMATS = (
    "wav",
    "w64",
    "aiff",
    "flac",
    "mp3",
    "aac",
    "ogg",
    "mov",
    "mp4",
    "m4a",
    "3gp",
    "3g2",
    "mj2",
    "matroska",
    "webm",
)
DECODERS = (
    *("pcm_s8", "pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be"),
    *("pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_f64be", "pcm_mulaw", "pcm_alaw"),
    *("adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt", "gsm", "gsm_ms", "amrnb", "amrwb"),
    *("flac", "alac", "mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "aac", "aac_latm", "ac3", "eac3"),
    *("opus", "libopus", "vorbis", "speex"),
)
_OPTIONS = {
    "format_whitelist": ",".join(FORMATS),
    "codec_whitelist": ",".join(DECODERS),
    "protocol_whitelist": "none",
    # A live stream must not wait for the five megabytes that the library would like to see first.
    "probesize": "4096",
    "analyzeduration": "200000",
}
_MAX_SPOILT_PACKETS = 100
# An MP4 of a few kilobytes may say that it has 100 million packets, for each of which the library makes an entry.
_MAX_ALLOCATION_BYTES = 64 << 20
# Below, one packet may be minutes of audio; no instrument writes such rates.
_MIN_RATE_HZ = 1000
_MAX_RATE_HZ = 768_000


class Readable(Protocol):
    """Bytes of a file; one that has `seek` and `tell` too is read in any order, else only forward."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...


def decode_container(file: Readable, *, mixes: bool, meter: AudioMeter) -> Iterator[Floats]:
    """Yield the samples of a file's first audio stream.

    Args:
        file: read in pieces while the samples are taken.
        mixes: whether the channels become one.
        meter: counts what is decoded and refuses what is too much, before it is resampled.

    Yields:
        [S, channels], or [S, 1] mixed, 16,000 a second.

    Raises:
        AudioUnreadable: this is no audio, or of a kind that is not read.
        AudioTooLong: there is more than may be.
        AudioTooLarge: there is more than may be.
    """
    num_samples = 0
    _limit_allocations()
    try:
        with av.open(file, "r", options=_OPTIONS, metadata_errors="ignore") as container:
            for samples in _samples(container, mixes, meter):
                num_samples += len(samples)
                yield samples
    except (FFmpegError, ValueError, EOFError, MemoryError) as error:
        raise AudioUnreadable("this is no audio of a kind that is read") from error
    if num_samples == 0:
        raise AudioUnreadable("there is no audio in it")


def _limit_allocations() -> None:
    """Bound each single allocation of the library, in the whole process."""
    # Not among what its Python face offers; the extension finds the function in the library that it is linked to.
    limit = ctypes.CDLL(av.frame.__file__).av_max_alloc
    limit.argtypes, limit.restype = [ctypes.c_size_t], None
    limit(_MAX_ALLOCATION_BYTES)


def _samples(container: InputContainer, mixes: bool, meter: AudioMeter) -> Iterator[Floats]:
    resampler: AudioResampler | None = None
    kind: tuple[int, str, str] | None = None
    layout = ""
    for frame in _frames(container, _audio_stream(container)):
        _check_frame(frame)
        meter.count_frames(frame.samples, frame.layout.nb_channels, frame.sample_rate)
        found = frame.sample_rate, frame.layout.name, frame.format.name
        if resampler is None or kind != found:
            # A stream may change its rate or channels on its way.
            yield from _resampled(resampler, None, mixes)
            layout = layout or frame.layout.name
            resampler = AudioResampler(format="flt", layout=layout, rate=SAMPLE_RATE_HZ)
            kind = found
        yield from _resampled(resampler, frame, mixes)
    yield from _resampled(resampler, None, mixes)


def _audio_stream(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise AudioUnreadable("there is no audio in it")
    stream = container.streams.audio[0]
    # The library's types do not say so, but there may be no decoder at all.
    decoder = cast("AudioCodecContext | None", stream.codec_context)
    if decoder is None or decoder.name not in DECODERS:
        raise AudioUnreadable("this is no audio of a kind that is read")
    return stream


def _check_frame(frame: AudioFrame) -> None:
    if frame.layout.nb_channels > MAX_CHANNELS:
        raise AudioUnreadable(f"there are more than {MAX_CHANNELS} channels")
    if not _MIN_RATE_HZ <= frame.sample_rate <= _MAX_RATE_HZ:
        raise AudioUnreadable(f"a rate of {frame.sample_rate} samples a second is not read")


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Yield decoded frames; a few spoilt packets are passed over."""
    num_spoilt = 0
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except InvalidDataError:
            num_spoilt += 1
            if num_spoilt > _MAX_SPOILT_PACKETS:
                raise


def _resampled(resampler: AudioResampler | None, frame: AudioFrame | None, mixes: bool) -> Iterator[Floats]:
    if resampler is None:
        return
    for part in resampler.resample(frame):
        # Packed floats: [1, S * channels], however many channels there are.
        samples = sound_floats(part.to_ndarray().reshape(-1, part.layout.nb_channels).astype(np.float32, copy=False))
        # The library's own mix of two channels is louder than either.
        yield samples.mean(axis=1, keepdims=True, dtype=np.float32) if mixes and samples.shape[1] > 1 else samples
