"""A checkpoint as a whole: both formats alike, the end of a text, packing by layer, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.quantization import LayerQuantization
from tests.support.tiny_checkpoints import (
    CHAT_TEMPLATE,
    llama_config,
    llama_tensors,
    write_folder,
    write_llama_gguf,
)

END, TURN = 265, 266
MODULE = "model.layers.0.mlp.up_proj"
AFFINE = {"group_size": 32, "bits": 4}


def packed_tensors(parts: dict[str, tuple[str, ...]]) -> dict[str, np.ndarray]:
    """Return a tiny Llama's tensors, with `weight` and these parts for some modules; their content does not matter."""
    tensors = llama_tensors(llama_config())
    for module, names in parts.items():
        tensors |= {f"{module}.{name}": np.zeros((4, 2), np.uint32) for name in ("weight", *names)}
    return tensors


def quantized(path: Path, block: dict[str, Any], parts: dict[str, tuple[str, ...]]) -> Checkpoint:
    return open_checkpoint(write_folder(path, llama_config(quantization=block), packed_tensors(parts)))


def test_opens_a_folder(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "tiny"))
    assert (checkpoint.name, checkpoint.format, checkpoint.architecture) == ("tiny", "safetensors", "llama")
    assert checkpoint.limits.max_position_embeddings == 512
    assert set(checkpoint.tensors) == set(llama_tensors(llama_config()))
    assert checkpoint.chat_template == CHAT_TEMPLATE
    assert checkpoint.quantization is None
    assert checkpoint.tokenizer().eos_token == "<|end|>"


def test_opens_a_gguf_file_whatever_its_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama_gguf(tmp_path / "model.bin"))
    assert (checkpoint.format, checkpoint.architecture) == ("gguf", "llama")
    assert checkpoint.chat_template == CHAT_TEMPLATE


def test_both_formats_of_a_model_agree(tmp_path: Path) -> None:
    folder = open_checkpoint(write_folder(tmp_path / "a"))
    file = open_checkpoint(write_llama_gguf(tmp_path / "a.gguf", kind="F32", embedding_kind="F32"))
    assert set(folder.tensors) == set(file.tensors)
    assert {name: tensor.shape for name, tensor in folder.tensors.items()} == {
        name: tensor.shape for name, tensor in file.tensors.items()
    }
    assert folder.eos_token_ids == file.eos_token_ids
    text = "the end of <|turn|> a 世界"
    assert folder.tokenizer().encode(text, True) == file.tokenizer().encode(text, True)


def test_shards_and_one_file_hold_the_same(tmp_path: Path) -> None:
    one, three = (open_checkpoint(write_folder(tmp_path / str(n), shards=n)) for n in (1, 3))
    assert set(one.tensors) == set(three.tensors)
    assert len({tensor.file for tensor in three.tensors.values()}) == 3


def test_the_tokenizer_is_built_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "a"))
    assert checkpoint.tokenizer() is checkpoint.tokenizer()


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "expected"),
    [
        (1, None, {1, END}),
        (None, [1], {1, END}),
        ([1, 2], [2, TURN], {1, 2, TURN, END}),
        (END, 3, {3, END}),
    ],
)
def test_a_text_ends_at_the_ids_of_config_generation_config_and_tokenizer(
    tmp_path: Path, config_ids: object, generation_ids: object, expected: set[int]
) -> None:
    generation = None if generation_ids is None else {"eos_token_id": generation_ids}
    folder = write_folder(tmp_path / "a", llama_config(eos_token_id=config_ids), generation_config=generation)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.eos_token_ids == expected
    assert checkpoint.tokenizer().token_bytes(END) == b""


@pytest.mark.parametrize(("stated", "has_head", "tied"), [(None, True, False), (None, False, True), (True, True, True)])
def test_the_head_is_the_embedding_where_there_is_no_other(
    tmp_path: Path, stated: bool | None, has_head: bool, tied: bool
) -> None:
    config = llama_config()
    tensors = llama_tensors({**config, "tie_word_embeddings": not has_head})
    del config["tie_word_embeddings"]
    stated_keys = {} if stated is None else {"tie_word_embeddings": stated}
    folder = write_folder(tmp_path / "a", config | stated_keys, tensors)
    assert open_checkpoint(folder).config["tie_word_embeddings"] is tied


def test_a_layer_is_packed_where_it_has_scales(tmp_path: Path) -> None:
    override = {"model.language_model.layers.0.mlp.down_proj": {"bits": 6}, "lm_head": False}
    down = "model.layers.0.mlp.down_proj"
    both = ("scales", "biases")
    checkpoint = quantized(tmp_path / "a", AFFINE | override, {MODULE: both, down: both})
    assert checkpoint.layer_quantization(MODULE) == LayerQuantization(4, 32)
    assert checkpoint.layer_quantization(down) == LayerQuantization(6, 32)
    assert checkpoint.layer_quantization("lm_head") is None
    assert checkpoint.layer_quantization("model.norm") is None


def test_a_float_mode_has_scales_and_no_biases(tmp_path: Path) -> None:
    block = {"group_size": 64, "bits": 8, MODULE: {"mode": "mxfp4"}}
    checkpoint = quantized(tmp_path / "a", block, {MODULE: ("scales",)})
    assert checkpoint.layer_quantization(MODULE) == LayerQuantization(4, 32, "mxfp4")


@pytest.mark.parametrize(
    ("block", "parts", "words"),
    [
        ({MODULE: {"bits": 6}}, (), "has no scales"),
        ({MODULE: False}, ("scales", "biases"), "is not quantized"),
        ({}, ("scales",), "lacks the biases"),
        ({MODULE: {"mode": "mxfp4"}}, ("scales", "biases"), "has biases"),
    ],
)
def test_names_a_layer_whose_parts_contradict_the_config(
    tmp_path: Path, block: dict[str, Any], parts: tuple[str, ...], words: str
) -> None:
    checkpoint = quantized(tmp_path / "a", AFFINE | block, {MODULE: parts})
    with pytest.raises(CheckpointCorrupt, match=words) as caught:
        checkpoint.layer_quantization(MODULE)
    assert (caught.value.file, caught.value.key) == ("model.safetensors", MODULE)


def test_scales_without_any_quantization_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", tensors=packed_tensors({MODULE: ("scales", "biases")}))
    with pytest.raises(CheckpointCorrupt, match="is not quantized"):
        open_checkpoint(folder).layer_quantization(MODULE)


def test_fp8_of_another_scheme_is_refused_by_the_scheme_s_name(tmp_path: Path) -> None:
    scheme = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    folder = write_folder(tmp_path / "a", llama_config(quantization_config=scheme))
    with pytest.raises(CheckpointRejected, match="float-quantized") as caught:
        open_checkpoint(folder)
    assert caught.value.key == "quantization_config.quant_method"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-10])

    return damage


def drop_hidden_size(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(llama_config(hidden_size=None)))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (remove("config.json"), CheckpointMissing, "config.json: is not there"),
        (remove("tokenizer.json"), CheckpointMissing, "tokenizer.json: is not there"),
        (remove("model.safetensors"), CheckpointMissing, "model.safetensors: is not there"),
        (cut("model.safetensors"), CheckpointCorrupt, "model.safetensors: "),
        (cut("config.json"), CheckpointCorrupt, "config.json: is not valid JSON"),
        (cut("tokenizer_config.json"), CheckpointCorrupt, "tokenizer_config.json: is not valid JSON"),
        (drop_hidden_size, CheckpointRejected, "config.json: hidden_size: is missing"),
    ],
)
def test_names_what_is_wrong_with_a_folder(
    tmp_path: Path, damage: Callable[[Path], None], error: type[CheckpointError], words: str
) -> None:
    folder = write_folder(tmp_path / "secret")
    damage(folder)
    with pytest.raises(error) as caught:
        open_checkpoint(folder).tokenizer()
    assert str(caught.value).startswith(words)
    assert "secret" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_truncated_gguf_file_is_corrupt(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointCorrupt, match=r"^m\.gguf: "):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["nothing", "nothing/at/all", "nul\0byte", "x" * 5000])
def test_a_checkpoint_that_is_not_there_is_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointMissing) as caught:
        open_checkpoint(tmp_path / name)
    assert str(tmp_path) not in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointRejected, match="neither"):
        open_checkpoint(tmp_path / "model.bin")


def revision(path: Path, **keywords: Any) -> str:
    return open_checkpoint(write_folder(path, **keywords)).revision


def test_the_revision_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    first = revision(tmp_path / "a")
    assert len(first) == 16
    assert revision(tmp_path / "b") == first
    others = [
        revision(tmp_path / "c", tensors=llama_tensors(llama_config(), seed=1)),
        revision(tmp_path / "d", chat_template="x"),
        revision(tmp_path / "e", generation_config={"temperature": 0.5}),
        revision(tmp_path / "f", config=llama_config(rope_theta=5e5)),
        revision(tmp_path / "g", tokenizer_config={"clean_up": True}),
    ]
    assert len({first, *others}) == 6


def test_errors_carry_their_facts_cut_to_what_a_status_can_hold() -> None:
    error = CheckpointRejected("is bad\n" * 100, file="config.json", key="k" * 5000)
    assert error.metadata["file"] == "config.json"
    assert len(error.metadata["key"]) == 200
    assert "\n" not in str(error)
    assert (error.reason, CheckpointCorrupt.reason, CheckpointMissing.reason) == (
        "CHECKPOINT_REJECTED",
        "CHECKPOINT_CORRUPT",
        "CHECKPOINT_REJECTED",
    )
