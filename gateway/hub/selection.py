"""Which files of a repository are downloaded: what a worker reads, and nothing else.

Formats that it does not read are named, so that nobody wonders where they are. A repository without weights that it
reads is refused before anything is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CONFIG_FILE = "config.json"
CONVERTED_FILE = "model.bin"  # CTranslate2's
INDEX_FILE = "model.safetensors.index.json"
MAX_FILES = 10_000
# One folder deep lie what sentence-transformers says of pooling and its neighbours.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", re.ASCII)
_MODULE = re.compile(r"[0-9]+_[A-Za-z]+/config\.json", re.ASCII)
_TEXTS = ("merges.txt", "vocabulary.txt", "multilingual.tiktoken", "gpt2.tiktoken")
_SHARD = re.compile(r"model.*\.safetensors", re.ASCII)
_SINGLE = ("model.safetensors", "weights.safetensors")
_OTHER_FORMATS = (
    ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".npz", ".npy", ".onnx", ".onnx_data", ".msgpack", ".h5", ".tflite",
    ".mlmodel", ".mlpackage", ".ot", ".model", ".gguf", ".safetensors", ".py", ".zip", ".tar", ".nemo",
)  # fmt: skip


class NothingUsable(Exception):
    """Raised when a repository has nothing that a worker could load; the text says what it has instead."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository.

    Attributes:
        name: its path in it.
        size: in bytes.
        digest: SHA-256 of what is stored apart from git, else git's own name of its content; empty where not told.
    """

    name: str
    size: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is downloaded, and what is left out though it may be large."""

    files: tuple[RemoteFile, ...]
    skipped: tuple[RemoteFile, ...] = field(default=())


def select(files: Sequence[RemoteFile], gguf: str, read_config: Callable[[], Mapping[str, Any]]) -> Selection:
    """Choose among the files of a repository.

    Args:
        files: all of them.
        gguf: the name of a GGUF file that is asked for; empty: the model in safetensors or CTranslate2's form.
        read_config: fetches config.json; called only where it decides.

    Raises:
        NothingUsable: there is no such file, or no model that a worker could load.
    """
    there = {file.name: file for file in files[:MAX_FILES]}
    if gguf:
        if gguf not in there or not gguf.lower().endswith(".gguf") or not _PLAIN.fullmatch(gguf):
            raise NothingUsable(f"it has no file {gguf}{_listed(there, '.gguf')}")
        return Selection((there[gguf],), _skipped(files, {gguf}))
    weights = _weights(there, read_config)
    names = {*weights, *(name for name in there if _is_read(name, has_index=INDEX_FILE in there))}
    return Selection(tuple(there[name] for name in sorted(names)), _skipped(files, names))


def is_converted_whisper(config: Mapping[str, Any]) -> bool:
    """Say whether a config stands beside a Whisper in CTranslate2's form."""
    return "suppress_ids" in config


def _weights(there: Mapping[str, RemoteFile], read_config: Callable[[], Mapping[str, Any]]) -> list[str]:
    """Return the names of the files of weights, in the order of search of a worker."""
    if CONFIG_FILE not in there:
        hint = "; ask for a GGUF file by its name: --file NAME.gguf" + _listed(there, ".gguf")
        raise NothingUsable("it has no config.json" + (hint if _names(there, ".gguf") else f", but {_formats(there)}"))
    if INDEX_FILE in there:
        return sorted(name for name in there if _SHARD.fullmatch(name) and name not in _SINGLE)
    for name in _SINGLE:
        if name in there:
            return [name]
    if shards := sorted(name for name in there if _SHARD.fullmatch(name)):
        return shards
    if CONVERTED_FILE in there and is_converted_whisper(read_config()):
        return [CONVERTED_FILE]
    raise NothingUsable(f"it has no safetensors, but {_formats(there)}{_listed(there, '.gguf')}")


def _is_read(name: str, *, has_index: bool) -> bool:
    """Say whether a worker reads a file beside the weights."""
    if _MODULE.fullmatch(name) or name in _TEXTS:
        return True
    if not _PLAIN.fullmatch(name):
        return False
    if name.endswith(".index.json"):
        return name == INDEX_FILE and has_index
    return name.endswith((".json", ".jinja"))


def _skipped(files: Iterable[RemoteFile], wanted: set[str]) -> tuple[RemoteFile, ...]:
    return tuple(file for file in files if file.name not in wanted and file.name.lower().endswith(_OTHER_FORMATS))


def _formats(there: Mapping[str, RemoteFile]) -> str:
    """Name the formats that are there and not read."""
    endings = {f".{name.rpartition('.')[2]}" for name in there if name.lower().endswith(_OTHER_FORMATS)}
    return f"{', '.join(sorted(endings))}, which are not read" if endings else "nothing else that holds weights"


def _names(there: Mapping[str, RemoteFile], ending: str) -> list[str]:
    return sorted(name for name in there if name.lower().endswith(ending) and _PLAIN.fullmatch(name))


def _listed(there: Mapping[str, RemoteFile], ending: str) -> str:
    names = _names(there, ending)
    return f"; there are: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}" if names else ""
