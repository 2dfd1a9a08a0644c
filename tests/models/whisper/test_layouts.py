"""MLX's, transformers' and CTranslate2's layouts are one model, and nothing in them is passed over."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected
from models.step import NumericPath
from models.whisper.config import Config
from models.whisper.ctranslate2 import read_model_file
from models.whisper.folder import is_whisper, open_whisper
from tests.models.whisper.hearing import load, logits_of
from tests.support.tiny_whisper import (
    ALIGNMENT_HEADS,
    SIZES,
    ctranslate2_bytes,
    write_ctranslate2,
    write_hugging_face,
    write_mlx,
)

WRITERS = {"mlx": write_mlx, "transformers": write_hugging_face, "ctranslate2": write_ctranslate2}
HALF: dict[str, Any] = {"mlx": mx.float16, "transformers": mx.float16, "ctranslate2": "float16"}


def loaded(file: Path) -> dict[str, mx.array]:
    tensors = mx.load(str(file))
    assert isinstance(tensors, dict)
    return tensors


def changed(folder: Path, name: str, array: np.ndarray) -> Path:
    return write_ctranslate2(folder, changed={name: array})


@pytest.mark.parametrize("layout", ["transformers", "ctranslate2"])
@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("path", NumericPath)
def test_layouts_give_the_same_bits(tmp_path: Path, layout: str, is_half: bool, path: NumericPath) -> None:
    mlx = write_mlx(tmp_path / "mlx", dtype=mx.float16 if is_half else mx.float32)
    other = WRITERS[layout](tmp_path / "other", **({"dtype": HALF[layout]} if is_half else {}))
    pairs = zip(logits_of(load(mlx, path).model), logits_of(load(other, path).model), strict=True)
    assert all(mx.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("layout", WRITERS)
def test_layouts_say_the_same_sizes_and_heads(tmp_path: Path, layout: str) -> None:
    folder = WRITERS[layout](tmp_path / "tiny")
    config = Config.from_checkpoint(open_whisper(folder).config)
    assert {key: getattr(config, key) for key in SIZES} == SIZES
    assert [list(pair) for pair in config.timing_heads] == ALIGNMENT_HEADS
    assert is_whisper(folder)


def test_heads_of_the_last_half_find_words_where_a_checkpoint_names_none(tmp_path: Path) -> None:
    folder = write_ctranslate2(tmp_path / "tiny")
    (folder / "config.json").write_text("{}")
    config = Config.from_checkpoint(open_whisper(folder).config)
    assert config.timing_heads == ((1, 0), (1, 1), (1, 2), (1, 3))


@pytest.mark.parametrize(
    "name", ["encoder/extra/weight", "decoder/layer_0/extra/weight", "decoder/layer_1/ffn/linear_9/bias"]
)
def test_a_variable_too_many_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = changed(tmp_path / "tiny", name, np.zeros((4, 4), np.float32))
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize("layout", ["mlx", "transformers"])
def test_a_tensor_too_many_is_refused_by_name(tmp_path: Path, layout: str) -> None:
    folder = WRITERS[layout](tmp_path / "tiny")
    file = next(folder.glob("*.safetensors"))
    tensors = loaded(file)
    mx.save_safetensors(str(file), {**tensors, "decoder.blocks.0.extra.weight": mx.zeros(3)})
    with pytest.raises(CheckpointRejected, match=r"decoder\.blocks\.0\.extra\.weight: is no part of this model"):
        load(folder)


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path / "tiny")
    file = folder / "weights.safetensors"
    tensors = loaded(file)
    del tensors["encoder.blocks.1.mlp1.bias"]
    mx.save_safetensors(str(file), tensors)
    with pytest.raises(CheckpointCorrupt, match=r"encoder\.blocks\.1\.mlp1\.bias: is missing"):
        load(folder)


def test_positions_that_were_trained_are_used(tmp_path: Path) -> None:
    name = "encoder/position_encodings/encodings"
    trained = changed(tmp_path / "trained", name, np.full((20, 64), 0.5, np.float32))
    plain = write_ctranslate2(tmp_path / "plain")
    assert not mx.allclose(logits_of(load(trained).model)[0], logits_of(load(plain).model)[0], atol=1e-3)


def test_a_bias_of_keys_is_refused_unless_it_is_zero(tmp_path: Path) -> None:
    bias = np.zeros(192, np.float32)
    bias[64 + 3] = 1
    with pytest.raises(CheckpointRejected, match="gives keys a bias"):
        load(changed(tmp_path / "tiny", "encoder/layer_0/self_attention/linear_0/bias", bias))


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("decoder/pre_norm", np.array(0, np.int8), "is set as no Whisper model is"),
        ("decoder/strange", np.array(1, np.int8), "is set as no Whisper model is"),
        ("decoder/layer_0/ffn/linear_0/weight", np.zeros((256, 64), np.int8), "has no scale for each row"),
        ("decoder/layer_0/ffn/linear_0/weight_scale", np.ones(256, np.float32), "is no part of a Whisper model"),
        ("decoder/alibi", np.array(1, np.int8), "is set as no Whisper model is"),
        ("decoder/layer_0/attention/linear_1/weight", np.zeros((129, 64), np.float32), "is no part of a Whisper model"),
        (
            "decoder/layer_0/attention/linear_1/weight",
            np.zeros((130, 64), np.float32),
            "has shape 65 x 64, not 64 x 64",
        ),
    ],
)
def test_other_models_of_ctranslate2_are_refused(tmp_path: Path, name: str, array: np.ndarray, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load(changed(tmp_path / "tiny", name, array))


def test_another_specification_is_refused(tmp_path: Path) -> None:
    folder = write_ctranslate2(tmp_path / "tiny")
    variables = {"decoder/embeddings/weight": np.zeros((2, 2), np.float32)}
    (folder / "model.bin").write_bytes(ctranslate2_bytes(variables, "TransformerSpec"))
    with pytest.raises(CheckpointRejected, match="holds a TransformerSpec"):
        open_whisper(folder)


def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    variables = {"decoder/embeddings/weight": np.ones((3, 2), np.float16), "decoder/num_heads": np.array(2, np.int16)}
    path.write_bytes(ctranslate2_bytes(variables))
    return path


def test_every_cut_of_a_model_file_is_noticed(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    whole = path.read_bytes()
    read_model_file(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_model_file(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointCorrupt, match="goes on after its end"):
        read_model_file(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_spoilt_model_file_is_read_or_refused_but_never_more(tmp_path: Path, seed: int) -> None:
    path = small_file(tmp_path)
    whole, draws = path.read_bytes(), np.random.default_rng(seed)
    for _ in range(200):
        spoilt = bytearray(whole)
        for place in draws.integers(0, len(whole), 3):
            spoilt[place] = draws.integers(0, 256)
        path.write_bytes(bytes(spoilt))
        try:
            model = read_model_file(path)
        except CheckpointError:
            continue
        assert all(variable.offset + variable.nbytes <= len(whole) for variable in model.variables.values())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_mels", 81),
        ("n_vocab", 50_000),
        ("n_text_head", 5),
        ("n_audio_ctx", 0),
        ("n_text_layer", "2"),
        ("n_text_ctx", None),
    ],
)
def test_sizes_that_fit_no_model_are_named(tmp_path: Path, key: str, value: object) -> None:
    folder = write_mlx(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(CheckpointRejected, match=key):
        open_whisper(folder)


def test_a_folder_without_a_vocabulary_says_which_file_it_wants(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointMissing, match=r"tokenizer\.json: is not there, nor any of vocab\.json"):
        open_whisper(folder)


def test_revisions_change_with_weights_and_vocabulary(tmp_path: Path) -> None:
    first, other = (open_whisper(write_ctranslate2(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    again = open_whisper(write_ctranslate2(tmp_path / "again"))
    assert first.revision == again.revision != other.revision
