"""Reading config.json and generation_config.json of a folder, and what both say about the end of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.checkpoint.architectures import architecture_of, check_architecture
from models.checkpoint.dialects import FULL, RopeLayout, dialect_for, plain_name
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes
from models.checkpoint.quantization import Quantization, parse_quantization
from models.checkpoint.text_config import CONFIG_FILE, TextConfig, read_model_type, read_text_config
from models.checkpoint.values import read_list, read_object, read_token_ids, read_word

GENERATION_CONFIG_FILE = "generation_config.json"
VISION_FILE = "optiq_vision.safetensors"
# By which mlx-lm's converter names a module that lies beside the weights.
_CODE_KEY = "model_file"
# What a wrapper may state once for the text model within it.
_SHARED_KEYS = (
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "quantization",
    "quantization_config",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A config.json, typed.

    Attributes:
        model_type: as the file says it: of the wrapper where there is one.
        architectures: names of the classes that wrote it.
        dtype: of the weights in training, in a word.
        text: the text model.
        quantization: None where no layer is quantized, or where a container states it by itself.
        eos_token_ids: end a text; the wrapper's word goes before the text model's.
        keys: the file's keys, flat, with what was read in place of what was left out: for those who pass a config on.
        has_vision: whether the weights of what sees pictures lie beside, in a file of their own.
    """

    model_type: str
    architectures: tuple[str, ...]
    dtype: str
    text: TextConfig
    quantization: Quantization | None
    eos_token_ids: tuple[int, ...]
    keys: Mapping[str, Any]
    has_vision: bool = False


def read_raw_config(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return config.json as it stands, and its bytes.

    Raises:
        CheckpointMissing, CheckpointCorrupt: naming the file.
        CheckpointRejected: it names code of its own, which is never run.
    """
    content = read_bytes(inside(folder, CONFIG_FILE, named_by=CONFIG_FILE), MAX_JSON_BYTES)
    raw = parse_object(content, CONFIG_FILE)
    nested = read_object(raw, "text_config", CONFIG_FILE) or {}
    if raw.get(_CODE_KEY) is not None or nested.get(_CODE_KEY) is not None:
        raise CheckpointRejected("names code, and no checkpoint's code is run", file=CONFIG_FILE, key=_CODE_KEY)
    return raw, content


def read_config(folder: Path) -> tuple[ModelConfig, bytes]:
    """Read config.json, and refuse what this build does not run.

    Returns:
        What it says, and the file's bytes.

    Raises:
        CheckpointMissing, CheckpointCorrupt, CheckpointRejected: naming the file and the key.
    """
    raw, content = read_raw_config(folder)
    architecture_of(plain_name(read_model_type(raw)), CONFIG_FILE)  # before keys that others may not have
    config = parse_config(raw)
    check_architecture(config.text, flat_keys(raw), CONFIG_FILE)
    return replace(config, has_vision=(folder / VISION_FILE).exists()), content


def parse_config(raw: Mapping[str, Any], file: str = CONFIG_FILE) -> ModelConfig:
    """Read a parsed config of any architecture.

    Raises:
        CheckpointRejected: naming the key.
    """
    text = read_text_config(raw, file)
    flat = flat_keys(raw)
    names = read_list(raw, "architectures", file) or []
    return ModelConfig(
        model_type=read_word(raw, "model_type", file, default=text.model_type),
        architectures=tuple(name for name in names if isinstance(name, str)),
        dtype=read_word(flat, "dtype" if flat.get("dtype") is not None else "torch_dtype", file, default="bfloat16"),
        text=text,
        quantization=parse_quantization(flat, file) if text.container is None else None,
        eos_token_ids=read_token_ids(raw, "eos_token_id", file) or text.eos_token_ids,
        keys=_keys(raw, flat, text, file),
    )


def read_generation_config(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Read generation_config.json; a folder without one has an empty one.

    Raises:
        CheckpointCorrupt, CheckpointRejected: naming the file and the key.
    """
    if not (folder / GENERATION_CONFIG_FILE).exists():
        return {}, b""
    content = read_bytes(inside(folder, GENERATION_CONFIG_FILE, named_by=GENERATION_CONFIG_FILE), MAX_JSON_BYTES)
    config = parse_object(content, GENERATION_CONFIG_FILE)
    eos_ids(config, GENERATION_CONFIG_FILE)
    return config, content


def eos_ids(config: Mapping[str, Any], file: str) -> frozenset[int]:
    """Return the end-of-text ids of a config: `eos_token_id` is one id, a list of them, null or absent.

    Raises:
        CheckpointRejected: it is anything else.
    """
    return frozenset(read_token_ids(config, "eos_token_id", file))


def flat_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's keys, and of its wrapper's those that it may state for it."""
    nested = read_object(raw, "text_config", CONFIG_FILE)
    if nested is None:
        return dict(raw)
    shared = {key: raw[key] for key in _SHARED_KEYS if raw.get(key) is not None}
    return {**shared, **{key: value for key, value in nested.items() if value is not None or key not in shared}}


def _keys(raw: Mapping[str, Any], flat: Mapping[str, Any], text: TextConfig, file: str) -> dict[str, Any]:
    keys: dict[str, Any] = {
        **flat,
        "model_type": text.model_type,
        "hidden_size": text.hidden_size,
        "num_hidden_layers": text.num_hidden_layers,
        "intermediate_size": text.intermediate_size,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": text.head_dim,
        "vocab_size": text.vocab_size,
        "rms_norm_eps": text.rms_norm_eps,
    }
    if raw.get("text_config") is not None:
        # Whoever stops at either id stops at the end of a text.
        keys["eos_token_id"] = sorted(eos_ids(raw, file) | eos_ids(flat, file))
    if dialect_for(text.model_type).rope is RopeLayout.THETA and FULL in text.rope:
        full = text.rope[FULL]
        keys |= {"rope_theta": full.theta, "rope_scaling": full.as_scaling(), "rope_parameters": None}
    return keys
