"""Opening a Whisper checkpoint's folder, whichever of three tools wrote it; headers only.

layout            known by                      weights                               sizes
MLX               config.json with n_mels       weights.safetensors, model.safetensors  config.json
transformers      config.json with d_model      model.safetensors, shards             config.json
CTranslate2       model.bin                     model.bin                             model.bin
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.checkpoint import Checkpoint, Limits
from models.checkpoint.config import GENERATION_CONFIG_FILE
from models.checkpoint.errors import CheckpointMissing, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes
from models.checkpoint.folder import read_folder_tensors
from models.checkpoint.quantization import Quantization, parse_quantization
from models.checkpoint.raw_numbers import read_raw_numbers
from models.checkpoint.revision import revision_of
from models.checkpoint.tensors import TensorInfo
from models.whisper.config import ARCHITECTURE, CONFIG_FILE, SIZE_KEYS, Config
from models.whisper.ctranslate2 import MODEL_FILE, ModelFile, read_model_file
from models.whisper.layouts import from_ctranslate2, from_hugging_face, integer_layers
from models.whisper.vocabulary import read_vocabulary

_ALIGNMENT = "alignment_heads"
_HF_SIZES = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
_MAX_ALIGNMENT_BYTES = 1 << 16


def is_whisper(folder: Path) -> bool:
    """Whether a folder's config says that it holds Whisper, in any layout; a folder without a config does not."""
    try:
        config = _read_config(folder, CONFIG_FILE)[0]
    except CheckpointMissing:
        return False
    is_converted = "suppress_ids" in config and (folder / MODEL_FILE).is_file()
    return "n_mels" in config or config.get("model_type") == ARCHITECTURE or is_converted


def open_whisper(folder: Path) -> Checkpoint:
    """Open a folder; its config has the keys of `Config`, its tensors the names of `models.whisper.layouts`.

    Raises:
        CheckpointError: naming the file that is missing, refused or corrupt, and the key within it.
    """
    config, config_bytes = _read_config(folder, CONFIG_FILE)
    generation, generation_bytes = ({}, b"")
    if (folder / GENERATION_CONFIG_FILE).exists():
        generation, generation_bytes = _read_config(folder, GENERATION_CONFIG_FILE)
    parts = [config_bytes, generation_bytes]
    if "n_mels" not in config and "d_model" not in config:
        model = read_model_file(inside(folder, MODEL_FILE, named_by=MODEL_FILE))
        parts.append(model.digest)
        tensors, sizes = from_ctranslate2(model), _ctranslate2_sizes(model)
        layers = integer_layers(tensors)
        quantization = Quantization(None, layers, {}, MODEL_FILE) if layers else None
        sizes[_ALIGNMENT] = config.get(_ALIGNMENT)
    else:
        quantization = parse_quantization(config, CONFIG_FILE)
        stored, headers = read_folder_tensors(folder)
        parts += [header.digest for header in headers]
        if "n_mels" in config:
            tensors, sizes = _mlx(stored, config)
        else:
            tensors = from_hugging_face(stored)
            sizes = {key: config.get(theirs) for key, theirs in _HF_SIZES.items()}
            sizes[_ALIGNMENT] = generation.get(_ALIGNMENT)
    full = {"model_type": ARCHITECTURE, **sizes}
    checked = Config.from_checkpoint(full)
    vocabulary = read_vocabulary(folder, checked)
    parts.append(hashlib.sha256(vocabulary.content).digest())
    return Checkpoint(
        name=folder.name,
        format="ctranslate2" if any(info.is_raw for info in tensors.values()) else "safetensors",
        config=full,
        generation_config=generation,
        quantization=quantization,
        tensors=tensors,
        chat_template=None,
        revision=revision_of(parts, sorted({info.file for info in tensors.values()})),
        limits=Limits(checked.n_text_ctx),
        read_tokenizer=vocabulary.tokenizer,
    )


def _read_config(folder: Path, name: str) -> tuple[dict[str, Any], bytes]:
    content = read_bytes(inside(folder, name, named_by=name), MAX_JSON_BYTES)
    return parse_object(content, name), content


def _mlx(stored: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> tuple[dict[str, TensorInfo], dict[str, Any]]:
    """Return the tensors without that of the alignment heads, which joins the sizes."""
    tensors = dict(stored)
    sizes: dict[str, Any] = {key: config.get(key) for key in SIZE_KEYS}
    heads = tensors.pop(_ALIGNMENT, None)
    if heads is not None:
        sizes[_ALIGNMENT] = _read_alignment(heads)
    return tensors, sizes


def _read_alignment(info: TensorInfo) -> list[list[int]]:
    is_whole = info.dtype.startswith(("I", "U"))
    if not is_whole or len(info.shape) != 2 or info.shape[1] != 2 or info.nbytes > _MAX_ALIGNMENT_BYTES:
        raise CheckpointRejected("is no list of layer and head", file=info.file.name, key=_ALIGNMENT)
    return read_raw_numbers(info).tolist()


def _ctranslate2_sizes(model: ModelFile) -> dict[str, Any]:
    """Return what shapes and counts say; None where a variable is not there."""

    def size(name: str, axis: int) -> int | None:
        variable = model.variables.get(name)
        return variable.shape[axis] if variable and axis < len(variable.shape) else None

    def layers(side: str) -> int:
        names = {name.split("/")[1] for name in model.variables if name.startswith(f"{side}/layer_")}
        return len(names - {"layer_norm"})

    return {
        "n_mels": size("encoder/conv1/weight", 1),
        "n_audio_ctx": size("encoder/position_encodings/encodings", 0),
        "n_audio_state": size("encoder/position_encodings/encodings", 1),
        "n_audio_head": model.scalars.get("encoder/num_heads"),
        "n_audio_layer": layers("encoder"),
        "n_vocab": size("decoder/embeddings/weight", 0),
        "n_text_ctx": size("decoder/position_encodings/encodings", 0),
        "n_text_state": size("decoder/position_encodings/encodings", 1),
        "n_text_head": model.scalars.get("decoder/num_heads"),
        "n_text_layer": layers("decoder"),
    }
