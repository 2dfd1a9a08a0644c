"""What the files of sentence-transformers say of a checkpoint that turns texts into vectors.

`modules.json` lists what is done behind the model's layers, `1_Pooling/config.json` how the vectors of a text's tokens
become one, `config_sentence_transformers.json` which prompts stand before texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes
from models.checkpoint.text_config import CONFIG_FILE
from models.checkpoint.values import MAX_TOKENS, read_bool, read_object, read_optional_int, read_word

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"
_FLAG = "pooling_mode_"
# Endings of the flags, by which mode each is; every other is a mode that is not computed.
_FLAGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken"}


class PoolingMode(Enum):
    """How the vectors of a text's tokens become one: that of the last or the first token, or the mean of all."""

    LAST = "lasttoken"
    MEAN = "mean"
    FIRST = "cls"


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """What the files say.

    Attributes:
        mode: how vectors become one.
        is_normalized: whether that one is scaled to length 1.
        prompts: by name, what stands before a text.
        default_prompt: stands there where nobody names one; empty: nothing.
        max_tokens: longest text, its special tokens included; None where nothing is said.
        contents: of the files, in a fixed order: what changes vectors beside the model.
    """

    mode: PoolingMode
    is_normalized: bool
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str = ""
    max_tokens: int | None = None
    contents: tuple[bytes, ...] = ()


def has_pooling(path: Path) -> bool:
    """Tell whether a checkpoint's files call it one that turns texts into vectors.

    Args:
        path: its folder or file.

    Returns:
        True also where `modules.json` cannot be read: then reading the rest says what is wrong.
    """
    if not (path / MODULES_FILE).exists():
        return False
    try:
        return "Pooling" in _module_kinds(_read_modules(path)[0])
    except CheckpointError:
        return True


def read_pooling(folder: Path) -> PoolingConfig | None:
    """Read what the files of a folder say; None where there is no `modules.json` with a Pooling module.

    Raises:
        CheckpointMissing, CheckpointCorrupt: a file that is named is not there, or no JSON of its kind.
        CheckpointRejected: they ask for what is not computed, naming the file and the key.
    """
    if not has_pooling(folder):
        return None
    modules, modules_bytes = _read_modules(folder)
    kinds = _module_kinds(modules)
    _check_modules(kinds)
    part = _part_of(modules[kinds.index("Pooling")])
    inside(folder, part, named_by=MODULES_FILE)
    pooling_bytes = read_bytes(inside(folder, CONFIG_FILE, named_by=MODULES_FILE, part=part), MAX_JSON_BYTES)
    told, told_bytes = _optional(folder, PROMPTS_FILE)
    lengths, length_bytes = _optional(folder, LENGTH_FILE)
    prompts = _read_prompts(told)
    return PoolingConfig(
        mode=_read_mode(parse_object(pooling_bytes, f"{part}/{CONFIG_FILE}"), f"{part}/{CONFIG_FILE}"),
        is_normalized="Normalize" in kinds,
        prompts=prompts,
        default_prompt=_default_prompt(told, prompts),
        max_tokens=read_optional_int(lengths, "max_seq_length", LENGTH_FILE, maximum=MAX_TOKENS),
        contents=(modules_bytes, pooling_bytes, told_bytes, length_bytes),
    )


def _read_modules(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    content = read_bytes(inside(folder, MODULES_FILE, named_by=MODULES_FILE), MAX_JSON_BYTES)
    try:
        listed: object = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt("is not valid JSON", file=MODULES_FILE) from error
    modules = cast("list[object]", listed) if isinstance(listed, list) else []
    if not modules or not all(isinstance(module, dict) for module in modules):
        raise CheckpointCorrupt("is no list of modules", file=MODULES_FILE)
    return cast("list[dict[str, Any]]", modules), content


def _module_kinds(modules: list[dict[str, Any]]) -> list[str]:
    """Return the classes of the modules, without where these are defined: that has changed over the years."""
    return [read_word(module, "type", MODULES_FILE).rpartition(".")[2] for module in modules]


def _check_modules(kinds: list[str]) -> None:
    if (
        strange := next((kind for kind in kinds if kind not in {"Transformer", "Pooling", "Normalize"}), None)
    ) is not None:
        raise CheckpointRejected(f"has a module {strange}, which is not computed", file=MODULES_FILE, key="type")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        problem = "is not a Transformer, a Pooling and perhaps a Normalize, in this order"
        raise CheckpointRejected(problem, file=MODULES_FILE)


def _part_of(module: dict[str, Any]) -> str:
    return read_word(module, "path", MODULES_FILE)


def _read_mode(pooling: Mapping[str, Any], file: str) -> PoolingMode:
    if not read_bool(pooling, "include_prompt", file, default=True):
        raise CheckpointRejected("leaves the prompt out, which is not computed", file=file, key="include_prompt")
    named = pooling.get("pooling_mode")
    if named is not None:
        words, key = [read_word(pooling, "pooling_mode", file)], "pooling_mode"
    else:
        flags = [name for name in pooling if name.startswith(_FLAG) and read_bool(pooling, name, file)]
        words = [_FLAGS.get(name.removeprefix(_FLAG), "") for name in flags]
        key = ", ".join(flags) or f"{_FLAG}…"
    known = {mode.value: mode for mode in PoolingMode}
    if len(words) != 1 or words[0] not in known:
        raise CheckpointRejected("is not one of cls, mean and lasttoken, which are computed", file=file, key=key)
    return known[words[0]]


def _read_prompts(told: Mapping[str, Any]) -> dict[str, str]:
    stated = read_object(told, "prompts", PROMPTS_FILE) or {}
    return {name: read_word(stated, name, PROMPTS_FILE, default="") for name in stated}


def _default_prompt(told: Mapping[str, Any], prompts: Mapping[str, str]) -> str:
    name = read_word(told, "default_prompt_name", PROMPTS_FILE, default="")
    if name and name not in prompts:
        raise CheckpointRejected("is the name of no prompt", file=PROMPTS_FILE, key="default_prompt_name")
    return prompts.get(name, "")


def _optional(folder: Path, name: str) -> tuple[Mapping[str, Any], bytes]:
    if not (folder / name).exists():
        return {}, b""
    content = read_bytes(inside(folder, name, named_by=name), MAX_JSON_BYTES)
    return parse_object(content, name), content
