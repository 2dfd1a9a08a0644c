"""Audio in a container (WAV, FLAC, MP3, Ogg, MP4, WebM) to floats at the rate that models hear, in a stream.

Containers that name other files or addresses, such as playlists, are not opened: only listed formats are, and they may
open nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError

from worker.audio.errors import AudioTooLong, AudioUnreadable
from worker.audio.pcm import SAMPLE_RATE_HZ, Floats

_OPTIONS = {
    "format_whitelist": "wav,w64,aiff,flac,mp3,aac,ogg,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm",
    "protocol_whitelist": "none",
}
_MAX_SPOILT_PACKETS = 100


def decode_container(file: BinaryIO, *, mixes: bool, max_s: float) -> Iterator[Floats]:
    """Yield the samples of a file's first audio stream.

    Args:
        file: can seek; MP4 may have its directory at the end.
        mixes: whether the channels become one.
        max_s: seconds that may be decoded; no more than a packet beyond is ever in memory.

    Yields:
        [S, channels], or [S, 1] mixed, 16,000 a second.

    Raises:
        AudioUnreadable: this is no audio, or of a kind that is not read.
        AudioTooLong: there is more than may be.
    """
    try:
        with av.open(file, "r", options=_OPTIONS, metadata_errors="ignore") as container:
            yield from _bounded(_samples(container, mixes=mixes), max_s)
    except (FFmpegError, ValueError, EOFError) as error:
        raise AudioUnreadable("this is no audio of a kind that is read") from error


def _bounded(chunks: Iterator[Floats], max_s: float) -> Iterator[Floats]:
    num_samples = 0
    for chunk in chunks:
        num_samples += len(chunk)
        if num_samples > max_s * SAMPLE_RATE_HZ:
            raise AudioTooLong(max_s)
        yield chunk
    if num_samples == 0:
        raise AudioUnreadable("there is no audio in it")


def _samples(container: InputContainer, *, mixes: bool) -> Iterator[Floats]:
    if not container.streams.audio:
        raise AudioUnreadable("there is no audio in it")
    resampler: AudioResampler | None = None
    kind: tuple[int, str, str] | None = None
    layout = ""
    for frame in _frames(container, container.streams.audio[0]):
        found = frame.sample_rate, frame.layout.name, frame.format.name
        if resampler is None or kind != found:
            # A stream may change its rate or channels on its way.
            yield from _resampled(resampler, None, mixes=mixes)
            layout = layout or frame.layout.name
            resampler = AudioResampler(format="flt", layout=layout, rate=SAMPLE_RATE_HZ)
            kind = found
        yield from _resampled(resampler, frame, mixes=mixes)
    yield from _resampled(resampler, None, mixes=mixes)


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


def _resampled(resampler: AudioResampler | None, frame: AudioFrame | None, *, mixes: bool) -> Iterator[Floats]:
    if resampler is None:
        return
    for part in resampler.resample(frame):
        # Packed floats: [1, S * channels], however many channels there are.
        samples = part.to_ndarray().reshape(-1, part.layout.nb_channels).astype(np.float32, copy=False)
        # The library's own mix of two channels is louder than either.
        yield samples.mean(axis=1, keepdims=True, dtype=np.float32) if mixes else samples
