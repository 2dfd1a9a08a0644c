"""Audio in containers, each written here by the library that reads it."""

import io
import socket
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.codec import Codec

from tests.worker.audio.clips import CODECS, LAYOUTS, left_tone, put_in, tone, written
from worker.audio.containers import DECODERS, FORMATS, decode_container
from worker.audio.errors import AudioTooLarge, AudioTooLong, AudioUnreadable
from worker.audio.limits import AudioLimits, AudioMeter


def decoded(raw: bytes, *, mixes: bool = True, max_s: float = 60, max_decoded_bytes: int = 1 << 30) -> np.ndarray:
    meter = AudioMeter(AudioLimits(max_s, len(raw), max_decoded_bytes))
    return np.concatenate(list(decode_container(io.BytesIO(raw), mixes=mixes, meter=meter)))


@pytest.mark.parametrize("container", CODECS)
def test_containers_are_heard(container: str) -> None:
    samples = decoded(written(container), mixes=False)
    assert samples.shape[1] == 2
    assert 15_500 <= len(samples) <= 18_000
    spectrum = np.abs(np.fft.rfft(samples[1000:15_000, 0]))
    assert spectrum.argmax() * 16_000 / 14_000 == pytest.approx(440, abs=2)
    assert np.abs(samples[4000:12_000, 0]).max() == pytest.approx(0.5, abs=0.05)
    assert np.abs(samples[4000:12_000, 1]).max() < 0.02


@pytest.mark.parametrize(
    "codec", ["pcm_u8", "pcm_s24le", "pcm_f32le", "pcm_f64le", "pcm_mulaw", "pcm_alaw", "adpcm_ms"]
)
def test_waves_are_heard_however_their_samples_are_written(codec: str) -> None:
    samples = decoded(written("wav", tone(16_000, 0.5)[None], 16_000, codec=codec))
    assert np.abs(samples[2000:6000, 0]).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 16_000, 22_050, 44_100, 96_000])
def test_every_rate_keeps_the_length(rate_hz: int) -> None:
    assert len(decoded(written("flac", left_tone(rate_hz, 0.5), rate_hz))) == pytest.approx(8000, abs=2)


def test_channels_are_mixed() -> None:
    assert np.abs(decoded(written("wav"))).max() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("num_channels", LAYOUTS)
def test_channels_are_kept_apart_in_their_order(num_channels: int) -> None:
    volumes = np.arange(1, num_channels + 1)[:, None] / 10
    raw = written("wav", (volumes * tone(16_000, 0.2)).astype(np.float32), 16_000)
    samples = decoded(raw, mixes=False)
    assert np.allclose(np.abs(samples).max(axis=0), volumes[:, 0] / 2, atol=1e-3)


def test_more_than_eight_channels_are_refused() -> None:
    raw = bytearray(written("wav", left_tone(16_000, 0.2), 16_000))
    raw[22:24], raw[32:34] = (16).to_bytes(2, "little"), (32).to_bytes(2, "little")
    with pytest.raises(AudioUnreadable, match="more than 8 channels"):
        decoded(bytes(raw))


def test_floats_that_are_no_numbers_are_silence() -> None:
    raw = bytearray(written("wav", tone(16_000, 0.2)[None], 16_000, codec="pcm_f32le"))
    raw[-4000:-2000] = np.full(500, np.nan, "<f4").tobytes()
    samples = decoded(bytes(raw))
    assert np.isfinite(samples).all()
    assert np.abs(samples[:2000]).max() > 0.4


@pytest.mark.parametrize("rate_hz", [16_000, 44_100])
def test_one_float_without_measure_is_no_louder_than_any(rate_hz: int) -> None:
    raw = bytearray(written("wav", tone(rate_hz, 0.2)[None], rate_hz, codec="pcm_f32le"))
    raw[-4000:-3996] = np.float32(3e38).tobytes()
    samples = decoded(bytes(raw))
    assert np.abs(samples).max() == 1.0
    assert np.abs(samples[:2000]).max() < 0.6


def test_what_is_too_long_is_refused_before_all_of_it_is_decoded() -> None:
    file = io.BytesIO(written("ogg", left_tone(48_000, 30.0)))
    meter = AudioMeter(AudioLimits(2, 1 << 30, 1 << 30))
    with pytest.raises(AudioTooLong, match="more than 2 seconds"):
        list(decode_container(file, mixes=True, meter=meter))
    assert file.tell() < len(file.getvalue()) / 2


def test_what_decodes_to_too_much_is_refused() -> None:
    with pytest.raises(AudioTooLarge, match="decodes to more than 100000 bytes"):
        decoded(written("flac"), max_decoded_bytes=100_000)


@pytest.mark.parametrize("raw", [b"", b"\0" * 5000, b"RIFF\xff\xff\xff\xffWAVE", b"ID3" + bytes(200), b"{}"])
def test_what_is_no_audio_is_refused(raw: bytes) -> None:
    with pytest.raises(AudioUnreadable):
        decoded(raw)


def picture() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as output:
        stream: Any = output.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        output.mux(stream.encode(None))
    return file.getvalue()


def test_pictures_without_sound_are_refused() -> None:
    with pytest.raises(AudioUnreadable, match="no audio in it"):
        decoded(picture())


@pytest.mark.parametrize("num_bytes", [200, 1_000_000])
def test_attached_pictures_are_passed_over(num_bytes: int) -> None:
    frame = (b"\0\0\0image/png\0\3\0" + bytes(num_bytes))[:num_bytes]
    size = len(frame) + 10
    head = b"ID3\3\0\0" + bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127])
    tag = head + b"APIC" + len(frame).to_bytes(4, "big") + frame[:2] + frame
    sound = written("mp3")
    assert abs(len(decoded(tag[: size + 10] + sound)) - len(decoded(sound))) <= 1


def test_only_sound_is_decoded() -> None:
    assert all(Codec(name, "r").type == "audio" for name in DECODERS)
    assert not {"concat", "hls", "dash", "sdp", "rtsp", "lavfi", "image2", "ffmetadata", "imf", "webvtt"} & set(FORMATS)


@pytest.mark.parametrize(("container", "codec"), [("au", "pcm_s16be"), ("caf", "pcm_s16le"), ("nut", "pcm_s16le")])
def test_containers_that_are_not_listed_are_refused(container: str, codec: str) -> None:
    raw = written(container, codec=codec)
    assert av.open(io.BytesIO(raw)).streams.audio
    with pytest.raises(AudioUnreadable):
        decoded(raw)


def test_a_listed_container_with_another_decoder_is_refused() -> None:
    with pytest.raises(AudioUnreadable, match="of a kind that is read"):
        decoded(written("matroska", codec="wavpack"))


def playlists(target: str) -> dict[str, bytes]:
    """Return files of kinds that name others."""
    return {
        "concat": f"ffconcat version 1.0\nfile {target}\n".encode(),
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n".encode(),
        "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 9 RTP/AVP 0\n",
        "dash": f'<?xml version="1.0"?><MPD><Period><AdaptationSet><Representation id="a"><BaseURL>{target}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>".encode(),
    }


def test_playlists_open_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.wav").write_bytes(written("wav"))
    monkeypatch.chdir(tmp_path)
    files = playlists("secret.wav")
    unguarded: Any
    with av.open(io.BytesIO(files["concat"])) as unguarded:
        assert sum(frame.samples for frame in unguarded.decode(audio=0)) == 48_000
    for file in files.values():
        with pytest.raises(AudioUnreadable):
            decoded(file)


def test_playlists_open_no_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for file in playlists(f"http://127.0.0.1:{listener.getsockname()[1]}/secret.wav").values():
            with pytest.raises(AudioUnreadable):
                decoded(file)
        with pytest.raises(BlockingIOError):
            listener.accept()


def pointing_at(path: str, raw: bytes) -> bytes:
    """Return a QuickTime file, silent itself, whose samples are said to lie in another, as an alias record tells."""
    name = path.encode()
    name = b"/" * (len(name) % 2) + name
    record = bytearray(150)
    record[10] = record[50] = 1  # lengths of the names of volume and file
    record += (2).to_bytes(2, "big") + len(name).to_bytes(2, "big") + name + b"\xff\xff\0\0"
    own = b"\0\0\0\x0curl \0\0\0\1"
    alias = (len(record) + 12).to_bytes(4, "big") + b"alis" + bytes(4) + record
    media = raw.index(b"mdat")
    size = int.from_bytes(raw[media - 4 : media], "big") - 8
    made = bytearray(raw[: media + 4] + bytes(size) + raw[media + 4 + size :])
    boxes = (b"dref", b"dinf", b"minf", b"mdia", b"trak", b"moov")
    put_in(made, made.rindex(own), alias, boxes, instead=len(own))
    return bytes(made)


def test_a_track_that_names_a_file_opens_nothing(tmp_path: Path) -> None:
    raw = written("mov", tone(16_000, 0.5)[None], 16_000, codec="pcm_s16le")
    secret = tmp_path / "secret.mov"
    secret.write_bytes(raw)
    pointing = pointing_at(str(secret), raw)
    unguarded: Any
    with av.open(io.BytesIO(pointing), options={"enable_drefs": "1", "use_absolute_path": "1"}) as unguarded:
        assert max(np.abs(frame.to_ndarray()).max() for frame in unguarded.decode(audio=0)) > 16_000
    with pytest.raises(AudioUnreadable):
        decoded(pointing)
