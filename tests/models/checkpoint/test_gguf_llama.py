"""A Llama in a GGUF file: its config, names, packing, and the rows that a converter permutes."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.gguf_llama import unpermuted_rows
from models.checkpoint.quantization import LayerQuantization
from tests.support.tiny_checkpoints import (
    gguf_metadata,
    gguf_name,
    llama_config,
    llama_tensors,
    permuted,
    write_gguf,
    write_llama_gguf,
)

DTYPES = {"U32": mx.uint32, "F16": mx.float16, "F32": mx.float32}


def opened(path: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_llama_gguf(path, metadata=gguf_metadata(llama_config(), **changes)))


def stored_values(checkpoint: Checkpoint, name: str, arrays: dict[str, mx.array]) -> np.ndarray:
    """Read a weight as it was before the converter: unpacked and with its rows in order."""
    module = name.removesuffix(".weight")
    info, layer = checkpoint.tensors[name], checkpoint.layer_quantization(module)
    values = arrays[info.stored_name]
    if layer is not None:
        scales, biases = (arrays[checkpoint.tensors[f"{module}.{part}"].stored_name] for part in ("scales", "biases"))
        values = mx.dequantize(values, scales, biases, group_size=layer.group_size, bits=layer.bits)
    rows = np.array(values.astype(mx.float32))
    return rows[unpermuted_rows(len(rows), info.permuted_heads)] if info.permuted_heads else rows


@pytest.mark.parametrize(("rows", "heads"), [(8, 1), (16, 2), (576, 9), (192, 3)])
def test_unpermuting_undoes_what_the_converter_does(rows: int, heads: int) -> None:
    matrix = np.arange(rows * 3).reshape(rows, 3)
    stored = permuted(matrix, heads)
    assert not np.array_equal(stored, matrix)
    assert np.array_equal(stored[unpermuted_rows(rows, heads)], matrix)


def test_gives_the_config_that_the_model_has_at_hugging_face(tmp_path: Path) -> None:
    config = opened(tmp_path / "m.gguf").config
    expected = llama_config()
    names = set(expected) - {"architectures", "rms_norm_eps"}
    assert {name: config[name] for name in names} == {name: expected[name] for name in names}
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    assert (config["head_dim"], config["rope_scaling"]) == (16, None)


def test_a_model_without_an_output_matrix_is_tied(tmp_path: Path) -> None:
    config = llama_config(tie_word_embeddings=True)
    assert open_checkpoint(write_llama_gguf(tmp_path / "m.gguf", config)).config["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("kind", "layer", "error"),
    [
        ("Q4_0", LayerQuantization(4, 32), 0.1),
        ("Q4_1", LayerQuantization(4, 32), 0.05),
        ("Q8_0", LayerQuantization(8, 32), 0.005),
        ("F16", None, 0.001),
        ("F32", None, 0.0),
    ],
)
def test_every_tensor_is_what_mlx_loads_and_means_what_was_written(
    tmp_path: Path, kind: str, layer: LayerQuantization | None, error: float
) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", kind=kind, embedding_kind="F32")
    checkpoint, arrays = open_checkpoint(path), mx.load(str(path))
    assert isinstance(arrays, dict)
    assert {info.stored_name for info in checkpoint.tensors.values()} == set(arrays)
    for info in checkpoint.tensors.values():
        array = arrays[info.stored_name]
        assert (array.shape, array.dtype, array.nbytes) == (info.shape, DTYPES[info.dtype], info.nbytes)
    assert checkpoint.layer_quantization("model.layers.1.self_attn.k_proj") == layer
    for name, tensor in llama_tensors(llama_config()).items():
        assert np.abs(stored_values(checkpoint, name, arrays) - tensor).max() <= error


def test_each_module_has_its_own_packing(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama_gguf(tmp_path / "m.gguf", kind="Q4_1", embedding_kind="Q8_0"))
    assert checkpoint.layer_quantization("model.embed_tokens") == LayerQuantization(8, 32)
    assert checkpoint.layer_quantization("model.layers.0.mlp.up_proj") == LayerQuantization(4, 32)
    assert checkpoint.layer_quantization("model.norm") is None
    assert str(checkpoint.quantization) == "affine 4-bit g32, mixed"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"general__architecture": "qwen2"}, "general.architecture"),
        ({"general__architecture": None}, "general.architecture"),
        ({"llama__embedding_length": None}, "llama.embedding_length"),
        ({"llama__block_count": None}, "llama.block_count"),
        ({"llama__attention__head_count": "4"}, "num_attention_heads"),
        ({"llama__attention__head_count_kv": np.array([2, 2], np.int32)}, "num_key_value_heads"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type"),
        ({"llama__rope__dimension_count": 8}, "llama.rope.dimension_count"),
        ({"llama__expert_count": 8}, "llama.expert_count"),
        ({"llama__vocab_size": 5}, "llama.vocab_size"),
    ],
)
def test_names_the_metadata_that_it_does_not_run(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path / "m.gguf", **changes)
    assert (caught.value.file, caught.value.key) == ("m.gguf", key)


def test_reads_linear_rope_scaling(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "m.gguf", llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    assert checkpoint.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def llama3_divisors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """By what Llama 3 divides each frequency, written from its definition by wave lengths."""
    divisors = []
    for index in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (index / head_dim)
        blend = (8192 / wave - 1) / (4 - 1)
        blended = 1 / ((1 - blend) / factor + blend)
        divisors.append(1.0 if wave < 8192 / 4 else factor if wave > 8192 else blended)
    return np.array(divisors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_recovers_llama3_scaling_from_the_stored_divisors(tmp_path: Path, factor: float) -> None:
    config = llama_config(hidden_size=256, rope_theta=500_000.0)
    stored = {gguf_name(name): ("F32", tensor) for name, tensor in llama_tensors(config).items()}
    divisors = llama3_divisors(64, 500_000.0, factor)
    assert len(set(divisors.tolist())) > 2
    stored["rope_freqs.weight"] = ("F32", divisors)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(config), stored))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192.0,
    }
    assert not any("rope" in name for name in checkpoint.tensors)


@pytest.mark.parametrize("value", [3.0, 0.0, float("nan"), float("inf"), -1.0])
def test_refuses_divisors_that_are_not_llama3_s(tmp_path: Path, value: float) -> None:
    config = llama_config()
    stored = {gguf_name(name): ("F32", tensor) for name, tensor in llama_tensors(config).items()}
    stored["rope_freqs.weight"] = ("F32", np.array([1, value] * 4, np.float32))
    with pytest.raises(CheckpointRejected) as caught:
        open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(config), stored))
    assert caught.value.key == "rope_freqs.weight"


@pytest.mark.parametrize("name", ["blk.0.attn_sinks.weight", "blk.00.attn_q.weight", "extra.weight", "blk.0.attn_q.x"])
def test_names_a_tensor_that_no_llama_has(tmp_path: Path, name: str) -> None:
    stored = {gguf_name(name): ("F32", tensor) for name, tensor in llama_tensors(llama_config()).items()}
    stored[name] = ("F32", np.ones(4, np.float32))
    with pytest.raises(CheckpointRejected) as caught:
        open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(llama_config()), stored))
    assert caught.value.key == name


def test_refuses_a_packed_tensor_that_is_no_matrix(tmp_path: Path) -> None:
    stored = {gguf_name(name): ("F32", tensor) for name, tensor in llama_tensors(llama_config()).items()}
    stored["output_norm.weight"] = ("Q8_0", np.ones(64, np.float32))
    with pytest.raises(CheckpointRejected, match="no matrix"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(llama_config()), stored))


def test_names_a_missing_embedding(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(llama_config()), {}))
    assert caught.value.key == "token_embd.weight"
