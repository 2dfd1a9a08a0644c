"""A Llama in a GGUF file as the config and the tensor names that the same model has at Hugging Face.

Keys and names: ggml's docs/gguf.md and llama.cpp's `gguf-py/gguf/constants.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.checkpoint.architectures import check_architecture
from models.checkpoint.config import parse_config
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.files import open_regular
from models.checkpoint.gguf import GgufHeader, GgufTensor
from models.checkpoint.quantization import LayerQuantization, Quantization
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.values import read_float

ARCHITECTURE = "llama"
ROPE_FREQUENCIES = "rope_freqs.weight"
_CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
}
_REQUIRED = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "rms_norm_eps")
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
_OUTER_PATTERN = re.compile(r"(token_embd|output_norm|output)\.(weight|bias)")
# MLX makes affine groups of 32 of these: bits a weight.
_QUANTIZED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_GROUP_SIZE = 32
# What every published Llama 3.1 and 3.2 has beside its own factor (its config.json, `rope_scaling`).
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0}


def gguf_config(header: GgufHeader, path: Path) -> dict[str, Any]:
    """Return the Hugging Face style config of a Llama in a GGUF file, checked.

    Raises:
        CheckpointRejected: another architecture, or a key that is missing or not run by this build.
    """
    file = path.name
    architecture = header.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise CheckpointRejected(
            f"the architecture {architecture} is not one of {ARCHITECTURE}", file=file, key="general.architecture"
        )
    config: dict[str, Any] = {"model_type": ARCHITECTURE}
    for name, key in _CONFIG_KEYS.items():
        value = header.metadata.get(f"{ARCHITECTURE}.{key}")
        if value is None and name in _REQUIRED:
            raise CheckpointRejected("is missing", file=file, key=f"{ARCHITECTURE}.{key}")
        if value is not None:
            config[name] = value
    config["vocab_size"] = _vocab_size(header, file)
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    config["rope_scaling"] = _rope_scaling(header, path)
    parsed = parse_config(config, file)
    check_architecture(parsed.text, config, file)
    checked = dict(parsed.keys)
    _check_dimensions(header, checked, file)
    return checked


def gguf_tensors(header: GgufHeader, config: Mapping[str, Any], path: Path) -> dict[str, TensorInfo]:
    """Return every tensor by canonical name; a block-quantized one as the three that MLX makes of it.

    Raises:
        CheckpointRejected: a tensor that no Llama has.
    """
    tensors: dict[str, TensorInfo] = {}
    for stored in header.tensors.values():
        if stored.name != ROPE_FREQUENCIES:
            heads = _permuted_heads(stored.name, config)
            for tensor in _parts(stored, _canonical(stored.name, path.name), path, heads):
                tensors[tensor.name] = tensor
    return tensors


def gguf_quantization(header: GgufHeader, file: str) -> Quantization | None:
    """Return how each module is packed; None where no tensor is block-quantized."""
    layers: dict[str, LayerQuantization | None] = {}
    for stored in header.tensors.values():
        if stored.name != ROPE_FREQUENCIES and stored.name.endswith(".weight") and len(stored.shape) > 1:
            bits = _QUANTIZED_BITS.get(stored.type)
            module = _canonical(stored.name, file).removesuffix(".weight")
            layers[module] = LayerQuantization(bits, _GROUP_SIZE) if bits else None
    packed = [layer for layer in layers.values() if layer is not None]
    if not packed:
        return None
    default = max(set(packed), key=packed.count)
    overrides = {module: layer for module, layer in layers.items() if layer != default}
    return Quantization(default, overrides, {}, file)


def unpermuted_rows(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """Return where each row of a q or k projection stands in a GGUF file.

    llama.cpp's converter turns each head's rows from halves (first, second) into pairs (first 0, second 0, first 1,
    ...), since it rotates neighbours where Hugging Face's Llama rotates halves.

    Args:
        num_rows: rows of the projection, `num_heads` times an even width of a head.
        num_heads: query heads for q, key-value heads for k.

    Returns:
        intp [num_rows]: `stored[unpermuted_rows(...)]` is the projection as Hugging Face's Llama has it.
    """
    pairs = np.arange(num_rows, dtype=np.intp).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)


def _vocab_size(header: GgufHeader, file: str) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointCorrupt("is missing or no matrix", file=file, key="token_embd.weight")
    stated = header.metadata.get(f"{ARCHITECTURE}.vocab_size", embedding.shape[0])
    if stated != embedding.shape[0]:
        raise CheckpointCorrupt("differs from the rows of token_embd.weight", file=file, key="llama.vocab_size")
    return embedding.shape[0]


def _check_dimensions(header: GgufHeader, config: Mapping[str, Any], file: str) -> None:
    rotated = header.metadata.get(f"{ARCHITECTURE}.rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        raise CheckpointRejected("is not the width of a head", file=file, key="llama.rope.dimension_count")
    if header.metadata.get(f"{ARCHITECTURE}.expert_count", 0) != 0:
        raise CheckpointRejected("means experts, which this build's Llama lacks", file=file, key="llama.expert_count")


def _rope_scaling(header: GgufHeader, path: Path) -> dict[str, Any] | None:
    prefix = f"{ARCHITECTURE}.rope.scaling"
    kind = header.metadata.get(f"{prefix}.type", "none")
    if ROPE_FREQUENCIES in header.tensors:
        if kind != "none":
            raise CheckpointRejected("is given together with rope_freqs.weight", file=path.name, key=f"{prefix}.type")
        return _llama3_scaling(header.tensors[ROPE_FREQUENCIES], header, path)
    if kind == "none":
        return None
    if kind != "linear":
        raise CheckpointRejected(f"the type {kind} is not one of none, linear", file=path.name, key=f"{prefix}.type")
    return {"rope_type": "linear", "factor": header.metadata.get(f"{prefix}.factor")}


def _llama3_scaling(stored: GgufTensor, header: GgufHeader, path: Path) -> dict[str, Any]:
    """Recover Llama 3's scaling from the divisors of the frequencies that a converter stored in its place."""
    if stored.type != "F32" or len(stored.shape) != 1 or stored.shape[0] > 4096:
        raise CheckpointRejected("is no list of 32-bit numbers", file=path.name, key=ROPE_FREQUENCIES)
    with open_regular(path) as file:
        file.seek(stored.offset)
        divisors = np.frombuffer(file.read(stored.nbytes), "<f4").astype(np.float64)
    theta = read_float({"rope_theta": header.metadata.get(f"{ARCHITECTURE}.rope.freq_base")}, "rope_theta", path.name)
    usable = bool(np.all(np.isfinite(divisors)) and np.all(divisors >= 1.0))
    factor = float(divisors.max(initial=1.0)) if usable else 1.0
    if not usable or not np.allclose(divisors, _llama3_divisors(len(divisors), theta, factor), rtol=1e-4, atol=0.0):
        raise CheckpointRejected("holds divisors that are not Llama 3's", file=path.name, key=ROPE_FREQUENCIES)
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_divisors(count: int, theta: float, factor: float) -> npt.NDArray[np.float64]:
    """Return by what Llama 3's scaling divides each of `count` frequencies.

    Source: Meta's llama-models, `apply_scaling` of llama3/model.py.
    """
    turns = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * theta ** (np.arange(count) / count))
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _canonical(name: str, file: str) -> str:
    if match := _LAYER_PATTERN.fullmatch(name):
        layer, part, suffix = match.groups()
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    if match := _OUTER_PATTERN.fullmatch(name):
        part, suffix = match.groups()
        return f"{_OUTER_NAMES[part]}.{suffix}"
    raise CheckpointRejected("is a tensor that this build's Llama lacks", file=file, key=name)


def _permuted_heads(name: str, config: Mapping[str, Any]) -> int:
    if ".attn_q." in name:
        return config["num_attention_heads"]
    return config["num_key_value_heads"] if ".attn_k." in name else 0


def _parts(stored: GgufTensor, name: str, path: Path, heads: int) -> list[TensorInfo]:
    def part(name: str, stored_name: str, dtype: str, shape: tuple[int, ...], item_bytes: int) -> TensorInfo:
        nbytes = math.prod(shape) * item_bytes
        return TensorInfo(name, stored_name, path, dtype, shape, stored.offset, nbytes, heads, stored.type)

    bits = _QUANTIZED_BITS.get(stored.type)
    if bits is None:
        return [part(name, stored.name, stored.type, stored.shape, 2 if stored.type == "F16" else 4)]
    if not name.endswith(".weight") or len(stored.shape) != 2:
        raise CheckpointRejected(f"has type {stored.type} but is no matrix", file=path.name, key=stored.name)
    rows, width = stored.shape
    stem, stored_stem, groups = name.removesuffix("weight"), stored.name.removesuffix("weight"), width // _GROUP_SIZE
    return [
        part(name, stored.name, "U32", (rows, width * bits // 32), 4),
        part(f"{stem}scales", f"{stored_stem}scales", "F16", (rows, groups), 2),
        part(f"{stem}biases", f"{stored_stem}biases", "F16", (rows, groups), 2),
    ]
