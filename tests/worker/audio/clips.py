"""Audio written here, by the library that reads it, for tests to read back."""

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np

CODECS = {
    "wav": "pcm_s16le",
    "w64": "pcm_s16le",
    "aiff": "pcm_s16be",
    "flac": "flac",
    "mp3": "libmp3lame",
    "adts": "aac",
    "ogg": "libopus",
    "mp4": "aac",
    "webm": "libopus",
}
LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


def tone(rate_hz: int, seconds: float, hertz: float = 440) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate_hz * seconds)) / rate_hz)).astype(np.float32)


def left_tone(rate_hz: int, seconds: float) -> np.ndarray:
    """Return [2, S]: a tone, and silence."""
    left = tone(rate_hz, seconds)
    return np.stack([left, np.zeros_like(left)])


def written(
    container: str, samples: np.ndarray | None = None, rate_hz: int = 48_000, *, codec: str = "", **options: str
) -> bytes:
    """Return a file with samples [channels, S]; unset: a second of tone in two channels, the second silent."""
    samples = left_tone(rate_hz, 1.0) if samples is None else samples
    layout = LAYOUTS[len(samples)]
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        stream: Any = output.add_stream(codec or CODECS[container], rate=rate_hz, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T).reshape(1, -1), format="flt", layout=layout)
        frame.sample_rate = rate_hz
        fitting = av.AudioResampler(format=stream.format, layout=layout, rate=rate_hz, frame_size=stream.frame_size)
        for part in [*fitting.resample(frame), *fitting.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()


def put_in(raw: bytearray, place: int, added: bytes, boxes: tuple[bytes, ...], *, instead: int = 0) -> None:
    """Put bytes into boxes that hold one another, each of which is there once, in the place of some."""
    raw[place : place + instead] = added
    for box in boxes:
        start = raw.rindex(box) - 4
        raw[start : start + 4] = (int.from_bytes(raw[start : start + 4], "big") + len(added) - instead).to_bytes(
            4, "big"
        )


def directory_first(raw: bytes) -> bytes:
    """Return an MP4 of one track with its directory moved in front of the samples."""
    media, directory = raw.index(b"mdat") - 4, raw.rindex(b"moov") - 4
    moved = bytearray(raw[directory:])
    table = moved.index(b"stco") + 8
    for index in range(int.from_bytes(moved[table : table + 4], "big")):
        place = table + 4 + 4 * index
        moved[place : place + 4] = (int.from_bytes(moved[place : place + 4], "big") + len(moved)).to_bytes(4, "big")
    return raw[:media] + bytes(moved) + raw[media:directory]


def halves_swapped(raw: bytes) -> bytes:
    """Return an MP4 of one track whose second half lies before the first, and whose directory says so in front."""
    made = bytearray(raw)
    sizes = made.rindex(b"stsz") + 12
    num_packets = int.from_bytes(made[sizes : sizes + 4], "big")
    first = num_packets // 2
    table = np.frombuffer(bytes(made[sizes + 4 : sizes + 4 + 4 * num_packets]), ">u4")
    split, whole = int(table[:first].sum()), int(table.sum())
    offset = made.rindex(b"stco") + 12
    start = int.from_bytes(made[offset : offset + 4], "big")
    made[start : start + whole] = made[start + split : start + whole] + made[start : start + split]
    parents = (b"stbl", b"minf", b"mdia", b"trak", b"moov")
    made[offset - 4 : offset + 4] = (2).to_bytes(4, "big") + (start + whole - split).to_bytes(4, "big")
    put_in(made, offset + 4, start.to_bytes(4, "big"), (b"stco", *parents))
    runs = made.rindex(b"stsc") + 8
    made[runs : runs + 16] = b"".join(number.to_bytes(4, "big") for number in (2, 1, first, 1))
    more = b"".join(number.to_bytes(4, "big") for number in (2, num_packets - first, 1))
    put_in(made, runs + 16, more, (b"stsc", *parents))
    return directory_first(bytes(made))


def long_opus(seconds: int) -> bytes:
    """Return hours of silence in a small file: packets of 60 ms, encoded once and written again and again."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as output:
        stream: Any = output.add_stream("libopus", rate=48_000, layout="mono", options={"frame_duration": "60"})
        stream.bit_rate = 6000
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 2880), np.float32), format="flt", layout="mono")
        frame.sample_rate = 48_000
        stream.encode(frame)
        last = bytes(stream.encode(frame)[0])
        for index in range(seconds * 1000 // 60):
            packet = av.Packet(last)
            packet.stream = stream
            packet.pts = packet.dts = index * 2880
            packet.duration = 2880
            packet.time_base = Fraction(1, 48_000)
            output.mux(packet)
    return file.getvalue()


def wav(
    samples: bytes, *, rate_hz: int = 16_000, num_channels: int = 1, size: int | None = None, bits: int = 16
) -> bytes:
    """Return a WAV whose header says what it is told to."""
    size = len(samples) if size is None else size
    frame = num_channels * bits // 8
    head = b"fmt " + np.array([16], "<u4").tobytes() + np.array([1, num_channels & 0xFFFF], "<u2").tobytes()
    head += np.array([rate_hz, (rate_hz * frame) & 0xFFFFFFFF], "<u4").tobytes()
    head += np.array([frame & 0xFFFF, bits], "<u2").tobytes()
    body = b"data" + np.array([size], "<u4").tobytes() + samples
    return b"RIFF" + np.array([(size + 36) & 0xFFFFFFFF], "<u4").tobytes() + b"WAVE" + head + body
