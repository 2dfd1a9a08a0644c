"""Checkpoints that other servers were reported to read wrongly: each is read right here, or refused by name."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.registry import load
from models.step import NumericPath
from tests.models.families import FLOATS_BESIDE_AFFINE
from tests.models.stepping import prefill
from tests.support.tiny_families import STYLES, Tiny, write_family
from tests.support.tiny_models import END_TOKEN_ID, write_tensors

PROMPT = list(range(3, 40))
SIX_BITS: dict[str, Any] = {
    "group_size": 64,
    "bits": 4,
    "model.layers.0.self_attn.q_proj": {"bits": 6, "group_size": 64},
    "model.layers.1.mlp.down_proj": False,
}


def logits_of(folder: Path) -> np.ndarray:
    loaded = load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)
    return np.array(prefill(loaded, loaded.make_cache(1), PROMPT, 2048))


def rewrite(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ml-explore/mlx-lm#1214: the key of a layer is spelled otherwise than the layer.
@pytest.mark.parametrize("quantization", [SIX_BITS, FLOATS_BESIDE_AFFINE], ids=["6-bit and plain", "mxfp4"])
@pytest.mark.parametrize("key_style", STYLES)
@pytest.mark.parametrize("style", STYLES)
def test_each_layer_keeps_its_own_packing_however_it_is_spelled(
    tmp_path: Path, style: str, key_style: str, quantization: dict[str, Any]
) -> None:
    plain = write_family(tmp_path / "plain", Tiny("qwen3", {}, quantization))
    other = write_family(tmp_path / "other", Tiny("qwen3", {}, quantization, style=style, key_style=key_style))
    checkpoint = open_checkpoint(other)
    found = {
        module: str(checkpoint.layer_quantization(module)) for module in quantization if module.startswith("model.")
    }
    expected = {
        module: "None"
        if value is False
        else f"{value.get('mode', 'affine')} {value['bits']}-bit g{value['group_size']}"
        for module, value in quantization.items()
        if module.startswith("model.")
    }
    assert found == expected
    assert np.array_equal(logits_of(other), logits_of(plain))


@pytest.mark.parametrize("key_style", STYLES)
def test_the_key_of_a_layer_that_is_not_there_is_named(tmp_path: Path, key_style: str) -> None:
    folder = write_family(tmp_path / "tiny", Tiny("qwen3", {}, {"group_size": 64, "bits": 4}))
    key = STYLES[key_style]("model.layers.7.mlp.up_proj")
    rewrite(folder, "config.json", quantization={"group_size": 64, "bits": 4, key: {"bits": 6}})
    with pytest.raises(CheckpointRejected) as caught:
        logits_of(folder)
    assert (caught.value.file, caught.value.key) == ("config.json", f"quantization.{key}")


# ml-explore/mlx-lm#1865: floats of eight bits must never be taken for four-bit codes.
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors (float-quantized)"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors (pack-quantized)"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_foreign_scheme_is_refused_by_name(
    tmp_path: Path, style: str, block: dict[str, Any], words: str, is_nested: bool
) -> None:
    wrapper = {"model_type": "gemma3"} if is_nested else None
    folder = write_family(tmp_path / "tiny", Tiny("gemma3_text", style=style, wrapper=wrapper))
    rewrite(folder, "config.json", quantization_config=block)
    with pytest.raises(CheckpointRejected) as caught:
        open_checkpoint(folder)
    assert (caught.value.file, caught.value.key) == ("config.json", "quantization_config.quant_method")
    assert words in caught.value.problem


def test_small_floats_that_no_key_speaks_of_are_refused(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", Tiny("qwen3"))
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors: dict[str, mx.array] = dict(stored)
    mx.eval(tensors)
    name = "model.layers.0.mlp.up_proj.weight"
    write_tensors(folder, {**tensors, name: mx.to_fp8(tensors[name])})
    with pytest.raises(CheckpointRejected) as caught:
        logits_of(folder)
    assert (caught.value.file, caught.value.key) == ("model.safetensors", name)


# Blaizzy/mlx-vlm#2112: every id that anybody names ends a text.
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("generation_ids", [[1], [1, 106], 106, None])
@pytest.mark.parametrize("wrapper_ids", [[1, 106], 1, None])
def test_every_end_that_is_named_ends_a_text(
    tmp_path: Path, style: str, generation_ids: object, wrapper_ids: object
) -> None:
    wrapper = {"model_type": "gemma3", "eos_token_id": wrapper_ids}
    folder = write_family(tmp_path / "tiny", Tiny("gemma3_text", {"eos_token_id": [7]}, wrapper=wrapper, style=style))
    rewrite(folder, "generation_config.json", eos_token_id=generation_ids)
    named = {7, END_TOKEN_ID}
    for ids in (generation_ids, wrapper_ids):
        named |= set(ids) if isinstance(ids, list) else {ids} - {None}
    assert open_checkpoint(folder).eos_token_ids == named
