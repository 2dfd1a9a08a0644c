"""Raw samples in pieces of any size."""

import numpy as np
import pytest

from tests.worker.audio.clips import tone
from worker.audio.errors import AudioTooLarge, AudioTooLong
from worker.audio.limits import AudioLimits, AudioMeter
from worker.audio.pcm import Encoding, PcmDecoder, PcmFormat

LIMITS = AudioLimits(max_s=10, max_bytes=1 << 30, max_decoded_bytes=1 << 30)


def decoder_of(
    encoding: Encoding,
    rate_hz: int = 16_000,
    num_channels: int = 1,
    *,
    mixes: bool = False,
    limits: AudioLimits = LIMITS,
) -> PcmDecoder:
    return PcmDecoder(PcmFormat(encoding, rate_hz, num_channels), mixes=mixes, meter=AudioMeter(limits))


def decoded(decoder: PcmDecoder, raw: bytes, sizes: int) -> np.ndarray:
    chunks = [raw[start : start + sizes] for start in range(0, len(raw), sizes)]
    return np.concatenate([*(decoder.decode(chunk) for chunk in chunks), decoder.flush()])


def test_whole_numbers_become_floats() -> None:
    raw = np.array([0, 16384, -32768, 32767], "<i2").tobytes()
    assert decoder_of(Encoding.S16_LE).decode(raw)[:, 0].tolist() == [0, 0.5, -1, 32767 / 32768]


def test_floats_stay_within_their_range_and_what_is_no_number_is_silence() -> None:
    raw = np.array([0.25, -1, np.nan, np.inf, -np.inf, 3e38, -20_000, 1.5], "<f4").tobytes()
    assert decoder_of(Encoding.F32_LE).decode(raw)[:, 0].tolist() == [0.25, -1, 0, 1, -1, 1, -1, 1]


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


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000])
def test_every_rate_keeps_the_sound_and_its_length(rate_hz: int) -> None:
    samples = decoded(decoder_of(Encoding.S16_LE, rate_hz), (tone(rate_hz, 0.5) * 32767).astype("<i2").tobytes(), 5000)
    assert abs(len(samples) - 8000) <= 1
    assert np.abs(samples[500:7000, 0] - tone(16_000, 0.5)[500:7000]).max() < 2e-3


@pytest.mark.parametrize("sizes", [1, 3, 7, 1000])
@pytest.mark.parametrize(("encoding", "num_channels"), [(Encoding.S16_LE, 1), (Encoding.F32_LE, 3), (Encoding.ALAW, 8)])
@pytest.mark.parametrize("rate_hz", [8000, 16_000, 44_100])
def test_pieces_of_any_size_are_heard_alike(sizes: int, rate_hz: int, encoding: Encoding, num_channels: int) -> None:
    raw = np.random.default_rng(1).integers(0, 100, 4004 * num_channels).astype(np.uint8).tobytes()
    in_pieces = decoded(decoder_of(encoding, rate_hz, num_channels), raw, sizes)
    whole = decoded(decoder_of(encoding, rate_hz, num_channels), raw, len(raw))
    assert np.array_equal(in_pieces, whole)


@pytest.mark.parametrize("num_channels", range(1, 9))
def test_channels_are_mixed_or_kept_apart(num_channels: int) -> None:
    frames = np.arange(num_channels * 5, dtype="<f4").reshape(5, num_channels) / 100
    apart = decoder_of(Encoding.F32_LE, num_channels=num_channels).decode(frames.tobytes())
    assert np.array_equal(apart, frames)
    mixed = decoder_of(Encoding.F32_LE, num_channels=num_channels, mixes=True).decode(frames.tobytes())
    assert np.allclose(mixed[:, 0], frames.mean(axis=1))


def test_half_a_sample_at_the_end_is_dropped() -> None:
    decoder = decoder_of(Encoding.S16_LE)
    assert len(decoder.decode(bytes(7))) == 3
    assert len(decoder.flush()) == 0


def test_a_skip_keeps_the_clock_whatever_the_rate() -> None:
    decoder = decoder_of(Encoding.S16_LE, 44_100)
    num_samples = 0
    for _ in range(100):
        num_samples += len(decoder.decode(bytes(2 * 441))) + len(decoder.flush()) + decoder.skip(0.03)
    assert num_samples == pytest.approx(100 * 0.04 * 16_000, abs=1)


def test_more_than_may_be_is_refused_while_it_comes() -> None:
    decoder = decoder_of(Encoding.S16_LE)
    decoder.decode(bytes(2 * 16_000 * 10))
    with pytest.raises(AudioTooLong, match="more than 10 seconds"):
        decoder.decode(bytes(2))


def test_a_skip_beyond_what_may_be_is_refused() -> None:
    with pytest.raises(AudioTooLong):
        decoder_of(Encoding.S16_LE).skip(10.5)


def test_more_bytes_than_may_be_decoded_are_refused() -> None:
    decoder = decoder_of(Encoding.S16_LE, num_channels=8, limits=AudioLimits(10, 1 << 30, 3200))
    decoder.decode(bytes(1600))
    with pytest.raises(AudioTooLarge, match="decodes to more than 3200 bytes"):
        decoder.decode(bytes(16))


@pytest.mark.parametrize(("rate_hz", "num_channels"), [(0, 1), (7999, 1), (48_001, 1), (16_000, 0), (16_000, 9)])
def test_formats_out_of_range_are_refused(rate_hz: int, num_channels: int) -> None:
    with pytest.raises(ValueError, match="8"):
        PcmFormat(Encoding.S16_LE, rate_hz, num_channels)
