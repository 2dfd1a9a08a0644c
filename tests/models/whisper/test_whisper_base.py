"""The real Whisper base: what mlx-whisper hears, on the path that is served."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.step import NumericPath
from models.whisper.decoding import TEMPERATURES, DecodingOptions, language_probabilities
from models.whisper.segments import Segment, TranscriptOptions
from models.whisper.session import Session
from models.whisper.transcribe import transcribe
from native import kernels
from tests.models.whisper.hearing import load
from tests.models.whisper.oracle import read_wav
from tests.support.whisper_base import whisper_base_path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension: minutes without it"),
]

RECORDINGS = Path(__file__).parent / "recordings"
GOLDENS: dict[str, Any] = json.loads((RECORDINGS / "mlx_whisper.json").read_text())
FRAME_S = 0.02


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load(whisper_base_path(), NumericPath.FAST)


def heard(loaded: Any, samples: mx.array, **options: Any) -> list[Segment]:
    decoding = DecodingOptions(language="en", **options)
    session = Session(loaded.model, is_reference=False)
    return list(transcribe(session, loaded.tokenizer, TranscriptOptions(decoding, has_words=True), samples))


def test_there_are_enough_recordings_to_tell() -> None:
    assert len(GOLDENS) >= 10
    assert set(GOLDENS) == {path.stem for path in RECORDINGS.glob("*.wav")}


@pytest.mark.parametrize("recording", GOLDENS)
def test_tokens_text_and_words_are_those_of_mlx_whisper(loaded: Any, recording: str) -> None:
    segments = heard(loaded, read_wav(RECORDINGS / f"{recording}.wav"), temperatures=(0.0,))
    assert [token for segment in segments for token in segment.tokens] == GOLDENS[recording]["tokens"]
    assert "".join(segment.text for segment in segments) == GOLDENS[recording]["text"]
    words = [word for segment in segments for word in segment.words]
    assert [word.text for word in words] == [word for word, *_ in GOLDENS[recording]["words"]]
    for word, (_, start_s, end_s, probability) in zip(words, GOLDENS[recording]["words"], strict=True):
        assert (word.start_s, word.end_s) == (pytest.approx(start_s, abs=FRAME_S), pytest.approx(end_s, abs=FRAME_S))
        assert word.probability == pytest.approx(probability, abs=1e-3)


def test_beams_hear_the_same_words(loaded: Any) -> None:
    segments = heard(loaded, read_wav(RECORDINGS / "austen_0880.wav"), temperatures=(0.0,), num_beams=5)
    assert "".join(segment.text for segment in segments) == GOLDENS["austen_0880"]["text"]


@pytest.mark.parametrize(
    "samples",
    [mx.zeros(48_000), mx.zeros(800), mx.random.normal((48_000,), key=mx.random.key(1)) * 0.02],
    ids=["silence", "50 ms", "noise"],
)
def test_nothing_is_heard_where_nobody_speaks(loaded: Any, samples: mx.array) -> None:
    assert heard(loaded, samples, temperatures=TEMPERATURES) == []


def test_english_is_known_when_it_is_heard(loaded: Any) -> None:
    from models.whisper.audio import pad_frames
    from models.whisper.transcribe import picture

    mel, _ = picture(read_wav(RECORDINGS / "austen_0890.wav"), loaded.model.config)
    session = Session(loaded.model, is_reference=False)
    (logits,) = session.language_logits(session.hear([pad_frames(mel, 3000)]), loaded.tokenizer.start)
    assert language_probabilities(logits, loaded.tokenizer)["en"] > 0.99
