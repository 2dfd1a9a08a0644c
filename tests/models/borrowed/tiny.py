"""Tiny random checkpoints of architectures that are not written here, by mlx-lm's own classes, from a fixed seed."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from tests.support.tiny_models import END_TOKEN_ID, VOCAB_SIZE, write_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "rope_theta": 10_000.0,
    "eos_token_id": END_TOKEN_ID,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "stablelm": {**SIZES, "use_qkv_bias": True, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
    "starcoder2": {**SIZES, "norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "olmo2": {**SIZES, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    # Windows that turn round, and layers that see everything.
    "olmo3": {**SIZES, "rms_norm_eps": 1e-5, "sliding_window": 16, "num_hidden_layers": 4},
    # States of fixed size alone.
    "mamba": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
}


def config_of(model_type: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **CONFIGS[model_type], **changes}


def write_borrowed(
    folder: Path, model_type: str, quantization: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """Write a checkpoint and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model_type, **changes)
    module: Any = importlib.import_module(f"mlx_lm.models.{model_type}")
    mx.random.seed(11)
    graph: Any = module.Model(module.ModelArgs.from_dict(config))
    graph.update(tree_map(lambda array: array + 0.1 * mx.random.normal(array.shape), graph.parameters()))
    if quantization is not None:
        nn.quantize(graph, **quantization)
        config["quantization"] = config["quantization_config"] = dict(quantization)
    tensors = dict(tree_flatten(graph.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder
