"""kv_config.json: how many bits the keys and values of each layer deserve, as measured by who made the checkpoint.

A list of `{"layer_idx": 0, "bits": 8, "group_size": 64}`. Other keys of an entry are notes of its maker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import inside, read_bytes

KV_CONFIG_FILE = "kv_config.json"
# What MLX quantizes keys and values to here: bits an element, elements that share a scale.
AFFINE_BITS = (4, 8)
AFFINE_GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE = 64
_MAX_BYTES = 1 << 20
_MAX_LAYERS = 4096


class LayerBits(NamedTuple):
    """What one entry says: a layer's number, bits an element, elements a group."""

    layer: int
    bits: int
    group_size: int


def read_kv_config(folder: Path) -> list[LayerBits]:
    """Read a checkpoint's kv_config.json; a layer is named once at most, in any order.

    Raises:
        CheckpointMissing: there is none, or it may not be read.
        CheckpointCorrupt: it is no list of objects with whole numbers, is empty, or names a layer twice.
        CheckpointRejected: it is too large, or asks for bits or a group size that this build does not offer.
    """
    try:
        content = read_bytes(inside(folder, KV_CONFIG_FILE, named_by=KV_CONFIG_FILE), _MAX_BYTES)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=KV_CONFIG_FILE) from error
    try:
        value: object = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt("is not valid JSON", file=KV_CONFIG_FILE) from error
    if not isinstance(value, list) or not value:
        raise CheckpointCorrupt("is not a list with entries", file=KV_CONFIG_FILE)
    entries = cast("list[object]", value)
    layers = [_layer(entry, f"[{number}]") for number, entry in enumerate(entries)]
    if len({entry.layer for entry in layers}) < len(layers):
        raise CheckpointCorrupt("names a layer twice", file=KV_CONFIG_FILE)
    return layers


def _layer(entry: object, key: str) -> LayerBits:
    if not isinstance(entry, dict):
        raise CheckpointCorrupt("is not an object", file=KV_CONFIG_FILE, key=key)
    fields = cast("dict[str, Any]", entry)
    layer = _number(fields, "layer_idx", key)
    if not 0 <= layer < _MAX_LAYERS:
        raise CheckpointCorrupt(f"is {layer}", file=KV_CONFIG_FILE, key=f"{key}.layer_idx")
    bits = _offered(fields, "bits", AFFINE_BITS, key)
    group_size = _offered({"group_size": DEFAULT_GROUP_SIZE, **fields}, "group_size", AFFINE_GROUP_SIZES, key)
    return LayerBits(layer, bits, group_size)


def _offered(fields: dict[str, Any], name: str, choices: tuple[int, ...], key: str) -> int:
    number = _number(fields, name, key)
    if number not in choices:
        words = ", ".join(map(str, choices))
        raise CheckpointRejected(f"is {number}; this build reads {words}", file=KV_CONFIG_FILE, key=f"{key}.{name}")
    return number


def _number(fields: dict[str, Any], name: str, key: str) -> int:
    value = fields.get(name)
    if type(value) is not int:
        words = "is missing" if value is None else "is not a whole number"
        raise CheckpointCorrupt(words, file=KV_CONFIG_FILE, key=f"{key}.{name}")
    return value
