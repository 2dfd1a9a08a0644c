"""Raw samples in pieces of any size."""

import numpy as np
import pytest

from worker.audio.errors import AudioTooLong
from worker.audio.pcm import Encoding, PcmDecoder


def tone(rate_hz: int, seconds: float = 0.5, hertz: float = 440) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate_hz * seconds)) / rate_hz)


def decoded(decoder: PcmDecoder, raw: bytes, sizes: int) -> np.ndarray:
    chunks = [raw[start : start + sizes] for start in range(0, len(raw), sizes)]
    return np.concatenate([*(decoder.decode(chunk) for chunk in chunks), decoder.decode(b"", is_last=True)])


def decoder_of(encoding: Encoding, rate_hz: int = 16_000, num_channels: int = 1, **options: bool) -> PcmDecoder:
    return PcmDecoder(encoding, rate_hz, num_channels, mixes=options.get("mixes", False), max_s=10)


def test_whole_numbers_become_floats() -> None:
    raw = np.array([0, 16384, -32768, 32767], "<i2").tobytes()
    assert decoder_of(Encoding.S16_LE).decode(raw)[:, 0].tolist() == [0, 0.5, -1, 32767 / 32768]


def test_floats_stay_and_what_is_no_number_is_silence() -> None:
    raw = np.array([0.25, np.nan, np.inf], "<f4").tobytes()
    assert decoder_of(Encoding.F32_LE).decode(raw)[:, 0].tolist() == [0.25, 0, 1]


# Decoder output values of G.711, tables 1a and 2a, on 14 and 13 bits, here on 16.
@pytest.mark.parametrize(
    ("encoding", "code", "value"),
    [
        (Encoding.MULAW, 0xFF, 0),
        (Encoding.MULAW, 0x80, 32124),
        (Encoding.MULAW, 0x00, -32124),
        (Encoding.MULAW, 0xFE, 8),
        (Encoding.ALAW, 0xD5, 8),
        (Encoding.ALAW, 0x55, -8),
        (Encoding.ALAW, 0xAA, 32256),
        (Encoding.ALAW, 0x2A, -32256),
    ],
)
def test_companded_codes_have_their_values(encoding: Encoding, code: int, value: int) -> None:
    assert decoder_of(encoding).decode(bytes([code]))[0, 0] * 32768 == value


@pytest.mark.parametrize("sizes", [1, 3, 7, 1000])
@pytest.mark.parametrize("rate_hz", [8000, 16_000, 44_100, 48_000])
def test_pieces_of_any_size_are_heard_alike(sizes: int, rate_hz: int) -> None:
    raw = (tone(rate_hz) * 32767).astype("<i2").tobytes()
    in_pieces = decoded(decoder_of(Encoding.S16_LE, rate_hz), raw, sizes)
    whole = decoded(decoder_of(Encoding.S16_LE, rate_hz), raw, len(raw))
    assert np.allclose(in_pieces, whole, atol=1e-6)
    assert abs(len(whole) - 8000) <= 1
    assert np.abs(whole[500:-500, 0] - tone(16_000)[500:7500][: len(whole) - 1000]).max() < 1e-3


def test_channels_are_mixed_or_kept_apart() -> None:
    raw = np.array([[0.5, -0.25], [0.25, 0.75]], "<f4").tobytes()
    assert decoder_of(Encoding.F32_LE, num_channels=2).decode(raw).tolist() == [[0.5, -0.25], [0.25, 0.75]]
    assert decoder_of(Encoding.F32_LE, num_channels=2, mixes=True).decode(raw).tolist() == [[0.125], [0.5]]


def test_more_than_may_be_is_refused_while_it_comes() -> None:
    decoder = decoder_of(Encoding.S16_LE)
    decoder.decode(bytes(2 * 16_000 * 10))
    with pytest.raises(AudioTooLong, match="more than 10 seconds"):
        decoder.decode(bytes(2))
