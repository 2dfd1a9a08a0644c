"""Checkpoints of architectures that are not written here, as far as their headers say; no MLX.

What is checked of any folder is checked of these: headers, links, packing, the tokenizer. Sizes are mlx-lm's to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.borrowed.known import EXTRA, is_installed, knows
from models.checkpoint.architectures import ARCHITECTURES
from models.checkpoint.checkpoint import Checkpoint, open_checkpoint, read_folder
from models.checkpoint.config import flat_keys, read_raw_config
from models.checkpoint.dialects import plain_name
from models.checkpoint.errors import CheckpointError, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes
from models.checkpoint.quantization import parse_quantization
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.text_config import CONFIG_FILE, read_model_type
from models.checkpoint.values import MAX_TOKENS, read_int, read_optional_int, read_word

# How configs spell the longest sequence of training.
_LONGEST_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
# What mlx-lm reads of a folder.
_READ_FILES = "model*.safetensors"


def open_any(path: Path, *, allow_mlx_lm: bool) -> Checkpoint:
    """Open a checkpoint of an architecture that is written here or, where that is allowed, that mlx-lm knows.

    Raises:
        CheckpointError: as `open_checkpoint`, and for an architecture that neither knows.
    """
    if allow_mlx_lm and _is_other(path):
        return _open(path)
    return open_checkpoint(path)


def _is_other(folder: Path) -> bool:
    """Tell whether a folder's config names an architecture that is not written here."""
    try:
        content = read_bytes(inside(folder, CONFIG_FILE, named_by=CONFIG_FILE), MAX_JSON_BYTES)
        return plain_name(read_model_type(parse_object(content, CONFIG_FILE))) not in ARCHITECTURES
    except CheckpointError:
        return False  # who opens it in the plain way says what is wrong


def _open(folder: Path) -> Checkpoint:
    raw, config_bytes = read_raw_config(folder)
    model_type = read_word(raw, "model_type", CONFIG_FILE, default=read_model_type(raw))
    _check_known(model_type)
    flat = flat_keys(raw)
    keys = {**flat, "model_type": model_type, "vocab_size": read_int(flat, "vocab_size", CONFIG_FILE)}
    checkpoint = read_folder(folder, keys, config_bytes, parse_quantization(flat, CONFIG_FILE), _longest(flat))
    _check_files(folder, checkpoint.tensors)
    return checkpoint


def _check_known(model_type: str) -> None:
    if knows(model_type):
        return
    problem = f"the architecture {model_type} is known neither here nor to mlx-lm"
    if not is_installed():
        problem = f"the architecture {model_type} is not known here; for those of mlx-lm: pip install '{EXTRA}'"
    raise CheckpointRejected(problem, file=CONFIG_FILE, key="model_type")


def _check_files(folder: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a folder of which mlx-lm would read other files than those whose headers were checked."""
    checked = {info.file.name for info in tensors.values()}
    read = {path.name for path in folder.glob(_READ_FILES)}
    for file in sorted(read - checked):
        raise CheckpointRejected("lies beside the weights, and mlx-lm would read it as well", file=file)
    for file in sorted(checked - read):
        raise CheckpointRejected(f"is not named {_READ_FILES}, and mlx-lm would not read it", file=file)


def _longest(flat: Mapping[str, Any]) -> int | None:
    key = next((key for key in _LONGEST_KEYS if flat.get(key) is not None), _LONGEST_KEYS[0])
    return read_optional_int(flat, key, CONFIG_FILE, maximum=MAX_TOKENS)
