"""Writes a Qwen3-MoE checkpoint of random 4-bit weights, as large as one wishes: the layers of Qwen3-30B-A3B, fewer.

What a layer computes and reads is as in the real model: 128 experts of 768, 8 for each token, width 2,048. Which
experts a token of random weights asks for says nothing of real text; how fast they come does not hang on it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from bench.mlx_folder import write_tokenizer

HIDDEN, INNER, EXPERTS, CHOSEN = 2048, 768, 128, 8
HEADS, KV_HEADS, HEAD_DIM = 32, 4, 128
VOCABULARY = 49_152  # of SmolLM2's tokenizer
GROUP_SIZE, BITS = 64, 4
LAYERS_PER_SHARD = 3
_CODES = 1 << BITS
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Named = tuple[str, Array]


def write(folder: Path, num_layers: int, tokenizer: Path) -> Path:
    """Write a checkpoint, and return its folder; one that is there whole is left as it is.

    Args:
        folder: where to; 345 MB a layer and 70 MB besides.
        num_layers: of 48 in the real model.
        tokenizer: a GGUF file of SmolLM2, whose tokenizer it gets.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists() and json.loads((folder / "config.json").read_text())["num_hidden_layers"] == num_layers:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    (folder / "config.json").write_text(json.dumps(_config(num_layers), indent=1))
    write_tokenizer(tokenizer, folder, "<|endoftext|>")
    shards = [list(range(at, min(at + LAYERS_PER_SHARD, num_layers))) for at in range(0, num_layers, LAYERS_PER_SHARD)]
    places: dict[str, str] = {}
    for number, layers in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = dict(named for layer in layers for named in _layer(numbers, layer))
        if number == 0:
            tensors |= dict(_ends(numbers))
        save_file(tensors, folder / name, {"format": "mlx"})
        places |= dict.fromkeys(tensors, name)
    total = sum((folder / name).stat().st_size for name in set(places.values()))
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    return folder


def _config(num_layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "num_hidden_layers": num_layers,
        "intermediate_size": 6144,
        "moe_intermediate_size": INNER,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 4096,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "quantization": {"group_size": GROUP_SIZE, "bits": BITS},
    }


def _layer(numbers: np.random.Generator, layer: int) -> Iterator[Named]:
    prefix = f"model.layers.{layer}"
    for norm, width in (
        ("input_layernorm", HIDDEN),
        ("post_attention_layernorm", HIDDEN),
        ("self_attn.q_norm", HEAD_DIM),
        ("self_attn.k_norm", HEAD_DIM),
    ):
        yield f"{prefix}.{norm}.weight", np.ones(width, np.float16)
    for name, outputs in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield from _packed(numbers, f"{prefix}.self_attn.{name}_proj", (outputs * HEAD_DIM, HIDDEN))
    yield from _packed(numbers, f"{prefix}.self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM))
    router = numbers.standard_normal((EXPERTS, HIDDEN), np.float32) * HIDDEN**-0.5
    yield f"{prefix}.mlp.gate.weight", router.astype(np.float16)
    for name, outputs, inputs in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
        yield from _packed(numbers, f"{prefix}.mlp.switch_mlp.{name}_proj", (EXPERTS, outputs, inputs))


def _ends(numbers: np.random.Generator) -> Iterator[Named]:
    yield from _packed(numbers, "model.embed_tokens", (VOCABULARY, HIDDEN))
    yield "model.norm.weight", np.ones(HIDDEN, np.float16)


def _packed(numbers: np.random.Generator, module: str, shape: tuple[int, ...]) -> Iterator[Named]:
    """Yield a matrix whose codes are evenly spread: what it multiplies keeps about its size."""
    *outer, inputs = shape
    codes = np.frombuffer(numbers.bytes(4 * int(np.prod(outer)) * inputs * BITS // 32), np.uint32)
    yield f"{module}.weight", codes.reshape(*outer, inputs * BITS // 32)
    step = (12 / (_CODES**2 - 1) / inputs) ** 0.5
    scales = np.full((*outer, inputs // GROUP_SIZE), step, np.float16)
    yield f"{module}.scales", scales
    yield f"{module}.biases", scales * np.float16(-(_CODES - 1) / 2)
