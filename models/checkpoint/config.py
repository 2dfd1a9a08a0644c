"""Reading config.json and generation_config.json of a folder, and what both say about the end of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from models.checkpoint.dialects import apply_dialect
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
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


def read_config(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Read config.json.

    A nested `text_config` becomes the config; of its wrapper only what a wrapper may state for it is kept, and the
    end-of-text ids of both are joined.

    Returns:
        The checked config with its architecture's defaults, and the file's bytes.

    Raises:
        CheckpointMissing, CheckpointCorrupt, CheckpointRejected: naming the file and the key.
    """
    content = read_bytes(inside(folder, CONFIG_FILE, named_by=CONFIG_FILE), MAX_JSON_BYTES)
    return normalized_config(parse_object(content, CONFIG_FILE)), content


def normalized_config(raw: Mapping[str, Any], file: str = CONFIG_FILE) -> dict[str, Any]:
    """Return a raw config flattened, with its architecture's defaults, every value checked.

    Raises:
        CheckpointRejected: naming the key.
    """
    text: object = raw.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise CheckpointRejected("is no object", file=file, key="text_config")
    config = dict(raw)
    if text is not None:
        shared = {key: raw[key] for key in _SHARED_KEYS if key in raw}
        config = {**shared, **cast("dict[str, Any]", text)}
        config["eos_token_id"] = sorted(eos_ids(raw, file) | eos_ids(config, file))
    eos_ids(config, file)
    return apply_dialect(config, file)


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
    value: object = config.get("eos_token_id")
    if value is None:
        return frozenset()
    ids = cast("list[object]", value) if isinstance(value, list) else [value]
    found = frozenset(number for number in ids if type(number) is int and 0 <= number < 1 << 31)
    if len(found) != len(set(map(repr, ids))):
        raise CheckpointRejected("is neither a token id nor a list of them", file=file, key="eos_token_id")
    return found
