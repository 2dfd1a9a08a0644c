"""Configs that tests vary, and how they are read."""

from typing import Any

import pytest

from models.checkpoint.architectures import check_architecture
from models.checkpoint.config import ModelConfig, parse_config
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.text_config import TextConfig, read_text_config

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
GEMMA4: dict[str, Any] = {"model_type": "gemma4_text", "num_key_value_heads": 2}


def config(model_type: str = "unheard_of", **keys: Any) -> dict[str, Any]:
    """Return a config of sizes and these keys; None removes a key."""
    return {key: value for key, value in {"model_type": model_type, **SIZES, **keys}.items() if value is not None}


def read(model_type: str = "unheard_of", **keys: Any) -> TextConfig:
    return read_text_config(config(model_type, **keys))


def parsed(model_type: str = "unheard_of", **keys: Any) -> ModelConfig:
    return parse_config(config(model_type, **keys))


def refused_key(raw: dict[str, Any]) -> str:
    with pytest.raises(CheckpointRejected) as caught:
        check_architecture(read_text_config(raw), raw, "config.json")
    assert caught.value.file == "config.json"
    return caught.value.key
