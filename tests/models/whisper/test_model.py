"""The graph: mlx-whisper's bits on the reference path, and what the fast path must keep."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.step import NumericPath
from models.whisper.model import Part
from models.whisper.state import Texts
from tests.models.whisper.hearing import PROMPT, TOKENS, load, logits_of, picture, step, texts_of
from tests.models.whisper.oracle import mlx_whisper_module
from tests.support.tiny_whisper import SIZES, write_mlx

VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"dtype": mx.float16},
    "English-only": {"sizes": {"n_vocab": 51_864}},
    "128 bands and 100 languages": {"sizes": {"n_mels": 128, "n_vocab": 51_866}},
    "more layers to hear": {"sizes": {"n_audio_layer": 3, "n_text_layer": 4}},
    "as large-v3-turbo: 128 bands, few layers to write": {
        "sizes": {"n_mels": 128, "n_vocab": 51_866, "n_audio_layer": 4, "n_text_layer": 2}
    },
    "4 bits": {"quantization": {"bits": 4, "group_size": 32}},
    "8 bits of float16": {"quantization": {"bits": 8, "group_size": 64}, "dtype": mx.float16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mlx(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_reference_path_has_the_bits_of_mlx_whisper(tmp_path: Path, variant: dict[str, Any]) -> None:
    load_model = mlx_whisper_module("load_models").load_model

    dtype = variant.get("dtype", mx.float32)
    folder = write_mlx(tmp_path / "tiny", **variant)
    oracle, ours = load_model(str(folder), dtype), load(folder, dtype=dtype).model
    mel = picture(num_bands=ours.config.n_mels).astype(dtype)
    audio = ours.encode(mel)
    assert mx.array_equal(audio, oracle.encoder(mel))
    texts = Texts(ours.remember(audio))
    cache: Any = None
    for tokens in (PROMPT, *TOKENS):
        expected, cache, expected_scores = oracle.decoder(mx.array([tokens]), audio, kv_cache=cache)
        scores: list[mx.array] = []
        hidden = ours.hidden([Part(mx.array([tokens]), texts)], scores)
        assert mx.array_equal(ours.head(hidden[0]), expected)
        assert all(mx.array_equal(*pair) for pair in zip(scores, expected_scores, strict=True))


@pytest.mark.parametrize("cpu_kernels", [True, False], ids=["native", "mlx"])
@pytest.mark.parametrize("variant", ["float32", "float16", "4 bits", "English-only", "128 bands and 100 languages"])
def test_fast_path_is_near_the_reference(tmp_path: Path, variant: str, cpu_kernels: bool) -> None:
    folder = write_mlx(tmp_path / "tiny", **VARIANTS[variant])
    fast = load(folder, NumericPath.FAST, cpu_kernels=cpu_kernels)
    assert fast.kernels == ("native" if cpu_kernels else "mlx")
    pairs = zip(logits_of(fast.model), logits_of(load(folder).model), strict=True)
    assert all(mx.allclose(*pair, rtol=0, atol=2e-4) for pair in pairs)


@pytest.mark.parametrize("path", NumericPath)
def test_several_tokens_on_a_filled_cache_see_no_later_ones(folder: Path, path: NumericPath) -> None:
    model = load(folder, path).model
    one_by_one = mx.concatenate(logits_of(model), axis=1)
    tokens = [*PROMPT, *(token for row in TOKENS for token in row)]
    in_chunks = mx.concatenate(logits_of(model, [tokens[:2], tokens[2:5], tokens[5:]]), axis=1)
    assert mx.allclose(one_by_one, in_chunks, rtol=0, atol=2e-4)


def test_native_bits_do_not_hang_on_chunks(folder: Path) -> None:
    model = load(folder, NumericPath.FAST).model
    tokens = [*PROMPT, *(token for row in TOKENS for token in row)]
    in_chunks = mx.concatenate(logits_of(model, [tokens[:3], tokens[3:7], tokens[7:]]), axis=1)
    assert mx.array_equal(mx.concatenate(logits_of(model), axis=1), in_chunks)


def test_native_bits_do_not_hang_on_other_windows(folder: Path) -> None:
    model = load(folder, NumericPath.FAST).model
    prompts = [PROMPT, [50_361, 400, 500, *PROMPT], PROMPT[:1]]
    alone = [logits_of(model, [prompt, [99]], seed) for seed, prompt in enumerate(prompts)]
    audio = model.encode(mx.concatenate([picture(seed) for seed in range(3)]))
    texts = [Texts(model.remember(audio[place : place + 1])) for place in range(3)]
    for at, tokens in enumerate((prompts, [[99]] * 3)):
        parts = [Part(mx.array([row]), kept) for row, kept in zip(tokens, texts, strict=True)]
        together = [model.head(hidden) for hidden in model.hidden(parts)]
        assert all(mx.array_equal(logits, alone[place][at]) for place, logits in enumerate(together))


@pytest.mark.parametrize("path", NumericPath)
def test_kept_texts_go_on_as_if_they_had_been_alone(folder: Path, path: NumericPath) -> None:
    model = load(folder, path).model
    texts = texts_of(model)
    step(model, texts, [PROMPT])
    texts.keep([0, 0, 0])
    step(model, texts, [[5], [6], [7]])
    texts.keep([2, 0])
    both = step(model, texts, [[8], [9]])
    for place, (before, after) in enumerate([(7, 8), (5, 9)]):
        alone = logits_of(model, [PROMPT, [before], [after]])[-1]
        assert mx.allclose(both[place : place + 1], alone, rtol=0, atol=2e-4)


def test_a_text_may_fill_all_positions(folder: Path) -> None:
    model = load(folder, NumericPath.FAST).model
    texts = texts_of(model)
    for token in range(SIZES["n_text_ctx"] - 1):
        step(model, texts, [[token]])
    logits = step(model, texts, [[SIZES["n_text_ctx"] - 1]])
    whole = logits_of(model, [list(range(SIZES["n_text_ctx"]))])[0]
    assert mx.array_equal(logits[:, -1], whole[:, -1])


def test_refuses_a_picture_of_another_size(folder: Path) -> None:
    with pytest.raises(ValueError, match="40 frames of 80 bands"):
        load(folder).model.encode(mx.zeros((1, 39, 80)))
