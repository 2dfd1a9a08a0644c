"""Log-mel pictures: Slaney's filters, and mlx-whisper's numbers bit for bit."""

import mlx.core as mx
import numpy as np
import pytest

from models.whisper.audio import LogMel, mel_filters, pad_frames
from tests.models.whisper.oracle import mlx_whisper_module


def noise(num_samples: int, seed: int = 3) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32))


@pytest.mark.parametrize("num_bands", [80, 128])
def test_filters_are_those_of_mlx_whisper(num_bands: int) -> None:
    oracle = mlx_whisper_module("audio").mel_filters

    assert np.array_equal(mel_filters(num_bands), np.array(oracle(num_bands)))


@pytest.mark.parametrize("num_bands", [80, 128])
@pytest.mark.parametrize(("num_samples", "num_padding"), [(16_000, 0), (48_123, 480_000), (100, 480_000), (201, 0)])
def test_pictures_are_those_of_mlx_whisper(num_bands: int, num_samples: int, num_padding: int) -> None:
    log_mel_spectrogram = mlx_whisper_module("audio").log_mel_spectrogram

    samples = noise(num_samples)
    picture = LogMel(num_bands)(samples, num_padding)
    assert picture.shape == ((num_samples + num_padding) // 160, num_bands)
    assert mx.array_equal(picture, log_mel_spectrogram(samples, num_bands, num_padding))


def test_silence_is_one_flat_picture() -> None:
    picture = LogMel(80)(mx.zeros(16_000))
    assert picture.min().item() == picture.max().item() == pytest.approx(-1.5)


def test_a_tone_is_brightest_in_its_band() -> None:
    seconds = np.arange(16_000) / 16_000
    picture = np.array(LogMel(80)(mx.array(np.sin(2 * np.pi * 1000 * seconds).astype(np.float32))))
    assert picture[50].argmax() == mel_filters(80)[:, 25].argmax()  # 1,000 Hz is the 25th of 40 Hz each


@pytest.mark.parametrize("samples", [mx.zeros(200), mx.zeros((2, 400))])
def test_refuses_what_is_no_row_long_enough(samples: mx.array) -> None:
    with pytest.raises(ValueError, match="at least 201 samples"):
        LogMel(80)(samples)


def test_windows_are_cut_or_filled_up() -> None:
    frames = mx.ones((5, 2))
    assert pad_frames(frames, 3).shape == (3, 2)
    assert pad_frames(frames, 7).sum(axis=1).tolist() == [2, 2, 2, 2, 2, 0, 0]
