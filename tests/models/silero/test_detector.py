"""Silero VAD against its ONNX form, in pieces of any size."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from models.silero import model
from models.silero.detector import SpeechDetector
from models.silero.model import Silero, load_silero
from tests.models.silero.sounds import CLIPS, SPOKEN, sound

BOUND = 1e-5  # float32, sums in another order


@pytest.fixture(scope="module")
def silero() -> Silero:
    return load_silero()


def goldens() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("goldens.npz")) as file:
        return dict(file)


def found(silero: Silero, samples: np.ndarray, sizes: int = 0) -> np.ndarray:
    detector = SpeechDetector(silero)
    step = sizes or len(samples)
    parts = [detector.probabilities(samples[start : start + step]) for start in range(0, len(samples), step)]
    return np.concatenate([*parts, detector.finish()])


@pytest.mark.parametrize("clip", CLIPS)
def test_it_finds_what_its_onnx_form_finds(silero: Silero, clip: str) -> None:
    assert np.abs(found(silero, sound(clip)) - goldens()[clip]).max() < BOUND


@pytest.mark.parametrize("clip", CLIPS)
def test_only_speech_is_speech(silero: Silero, clip: str) -> None:
    assert (found(silero, sound(clip)).max() > 0.9) == (clip in {*SPOKEN, "loud"})


@pytest.mark.parametrize("sizes", [1, 160, 511, 512, 513, 4000])
def test_pieces_of_any_size_are_heard_alike(silero: Silero, sizes: int) -> None:
    samples = sound("goforward")[:8000]
    assert np.abs(found(silero, samples, sizes) - found(silero, samples)).max() < BOUND


def test_a_probability_comes_with_each_whole_chunk(silero: Silero) -> None:
    detector = SpeechDetector(silero)
    assert [len(detector.probabilities(np.zeros(256, np.float32))) for _ in range(6)] == [0, 1, 0, 1, 0, 1]
    assert len(detector.finish()) == 0
    assert len(detector.probabilities(np.zeros(1, np.float32))) == 0
    assert len(detector.finish()) == 1


def test_detectors_that_share_the_weights_hear_only_their_own(silero: Silero) -> None:
    one, other = SpeechDetector(silero), SpeechDetector(silero)
    alone = found(silero, sound("goforward"))
    parts = []
    for start in range(0, 40_960, 2048):
        parts.append(one.probabilities(sound("goforward")[start : start + 2048]))
        other.probabilities(sound("noise")[start : start + 2048])
    heard = np.concatenate(parts)
    assert np.abs(heard - alone[: len(heard)]).max() < BOUND


def test_long_audio_takes_no_more_memory_than_a_part_of_it(silero: Silero) -> None:
    samples = np.zeros(512 * 4096, np.float32)
    tracemalloc.start()
    SpeechDetector(silero).probabilities(samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes * 2 + (32 << 20)


def test_the_first_layer_is_a_fourier_transform_under_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, np.ndarray]] = []
    monkeypatch.setattr(model, "Silero", kept.append)
    load_silero()
    basis = kept[0]["stft_conv.weight"][:, 0]
    turns = np.exp(-2j * np.pi * np.outer(np.arange(129), np.arange(256)) / 256) * basis[0]
    assert np.abs(basis - np.concatenate([turns.real, turns.imag])).max() < 1e-6


def test_the_weights_come_with_their_licence() -> None:
    folder = Path(model.__file__).parent
    assert "Silero Team" in (folder / "LICENSE").read_text()
    assert (folder / "silero_vad_v6_16k.safetensors").stat().st_size > 1_200_000
