"""Audio in containers, each written here by the library that reads it."""

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from worker.audio.containers import decode_container
from worker.audio.errors import AudioTooLong, AudioUnreadable

CONTAINERS = {
    "wav": "pcm_s16le",
    "flac": "flac",
    "mp3": "libmp3lame",
    "ogg": "libopus",
    "mp4": "aac",
    "webm": "libopus",
}


def tone(rate_hz: int, seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate_hz * seconds)) / rate_hz)).astype(np.float32)


def written(container: str, seconds: float = 1.0, rate_hz: int = 48_000) -> bytes:
    """Return a tone in two channels, the second silent."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(CONTAINERS[container], rate=rate_hz, layout="stereo")
        left = tone(rate_hz, seconds)
        frame = av.AudioFrame.from_ndarray(np.stack([left, np.zeros_like(left)]), format="fltp", layout="stereo")
        frame.sample_rate = rate_hz
        fitting = av.AudioResampler(format=stream.format, layout="stereo", rate=rate_hz, frame_size=stream.frame_size)
        for part in [*fitting.resample(frame), *fitting.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()


def decoded(raw: bytes, *, mixes: bool = True, max_s: float = 60) -> np.ndarray:
    return np.concatenate(list(decode_container(io.BytesIO(raw), mixes=mixes, max_s=max_s)))


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_are_heard(container: str) -> None:
    samples = decoded(written(container), mixes=False)
    assert samples.shape[1] == 2
    assert 15_500 <= len(samples) <= 18_000
    spectrum = np.abs(np.fft.rfft(samples[1000:15_000, 0]))
    assert spectrum.argmax() * 16_000 / 14_000 == pytest.approx(440, abs=2)
    assert np.abs(samples[4000:12_000, 0]).max() == pytest.approx(0.5, abs=0.05)
    assert np.abs(samples[4000:12_000, 1]).max() < 0.02


def test_channels_are_mixed() -> None:
    assert np.abs(decoded(written("wav"))).max() == pytest.approx(0.25, abs=0.02)


def test_what_is_too_long_is_refused_before_all_of_it_is_decoded() -> None:
    file = io.BytesIO(written("ogg", 30.0))
    with pytest.raises(AudioTooLong, match="more than 2 seconds"):
        list(decode_container(file, mixes=True, max_s=2))
    assert file.tell() < len(file.getvalue()) / 2


@pytest.mark.parametrize("raw", [b"", b"\0" * 5000, b"RIFF\xff\xff\xff\xffWAVE", b"ID3" + bytes(200), b"{}"])
def test_what_is_no_audio_is_refused(raw: bytes) -> None:
    with pytest.raises(AudioUnreadable):
        decoded(raw)


def test_playlists_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.wav").write_bytes(written("wav"))
    monkeypatch.chdir(tmp_path)
    playlist = b"ffconcat version 1.0\nfile secret.wav\n"
    unguarded: Any
    with av.open(io.BytesIO(playlist)) as unguarded:
        assert sum(frame.samples for frame in unguarded.decode(audio=0)) == 48_000
    with pytest.raises(AudioUnreadable):
        decoded(playlist)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_file_that_breaks_off_is_heard_so_far_or_refused(container: str) -> None:
    whole = written(container)
    for share in (0.02, 0.5, 0.9):
        raw = whole[: int(len(whole) * share)]
        try:
            assert len(decoded(raw)) <= 18_000
        except AudioUnreadable:
            continue


def test_a_spoilt_file_does_no_harm() -> None:
    draws = np.random.default_rng(3)
    for container in CONTAINERS:
        for _ in range(10):
            raw = bytearray(written(container, 0.2))
            for place in draws.integers(0, len(raw), 20):
                raw[place] = draws.integers(0, 256)
            try:
                decoded(bytes(raw))
            except (AudioUnreadable, AudioTooLong):
                continue
