"""Finding the tensors of a Hugging Face folder: an index and its shards, or files without an index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, inside, parse_object, read_bytes
from models.checkpoint.names import canonical_name
from models.checkpoint.safetensors import SafetensorsHeader, read_safetensors_header
from models.checkpoint.tensors import TensorInfo

INDEX_FILE = "model.safetensors.index.json"
_SINGLE_FILES = ("model.safetensors", "weights.safetensors")
_REFUSED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".npy", ".npz")
# A table that old Llama checkpoints store though it follows from the config.
_DERIVED = ".rotary_emb.inv_freq"
_WEIGHT_MAP = "weight_map"
# Those that hold code to run or that nothing here checks: pickle streams, zipped pickles, NumPy arrays.
_REFUSED_STARTS = {b"\x80": "a pickle", b"PK\x03\x04": "a zipped pickle", b"\x93NUMPY": "a NumPy array"}


def read_folder_tensors(folder: Path) -> tuple[dict[str, TensorInfo], list[SafetensorsHeader]]:
    """Read the header of every weight file of a folder.

    Order of search: model.safetensors.index.json, model.safetensors, weights.safetensors, model*.safetensors.

    Returns:
        Tensors by canonical name, and the headers in the order of their files' names.

    Raises:
        CheckpointMissing: there are no weights, or a listed file is not there.
        CheckpointCorrupt: a header lies, two files hold one tensor, or the index and its shards disagree.
        CheckpointRejected: only weights of a kind that may run code, a name that leaves the folder, or FP8 data.
    """
    weight_map: dict[str, str] | None = None
    if (folder / INDEX_FILE).exists():
        weight_map = _read_index(folder)
    files = sorted(set(weight_map.values())) if weight_map is not None else _unlisted_files(folder)
    tensors: dict[str, TensorInfo] = {}
    headers: list[SafetensorsHeader] = []
    for file in files:
        header = read_safetensors_header(inside(folder, file, named_by=INDEX_FILE))
        headers.append(header)
        _add_tensors(tensors, header, folder / file)
    if weight_map is not None:
        _check_index(weight_map, dict(zip(files, headers, strict=True)))
    return tensors, headers


def _read_index(folder: Path) -> dict[str, str]:
    content = read_bytes(inside(folder, INDEX_FILE, named_by=INDEX_FILE), MAX_JSON_BYTES)
    weight_map: object = parse_object(content, INDEX_FILE).get(_WEIGHT_MAP)
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointCorrupt("is not an object with entries", file=INDEX_FILE, key=_WEIGHT_MAP)
    files = cast("dict[str, Any]", weight_map)
    for name, file in files.items():
        if not isinstance(file, str):
            raise CheckpointCorrupt("is not listed with a file's name", file=INDEX_FILE, key=name or _WEIGHT_MAP)
    for file in set(files.values()):
        if not file.endswith(".safetensors"):
            raise CheckpointRejected("names a file that is not safetensors", file=INDEX_FILE, key=file or _WEIGHT_MAP)
    return files


def _unlisted_files(folder: Path) -> list[str]:
    for name in _SINGLE_FILES:
        if (folder / name).exists():
            return [name]
    names = sorted(path.name for path in folder.glob("model*.safetensors"))
    if not names:
        _refuse_other_weights(folder)
        raise CheckpointMissing("is not there, nor any other safetensors weights", file=_SINGLE_FILES[0])
    return names


def _refuse_other_weights(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix.lower() in _REFUSED_SUFFIXES:
            start = read_start(path)
            kind = next((word for magic, word in _REFUSED_STARTS.items() if start.startswith(magic)), "no safetensors")
            raise CheckpointRejected(f"is {kind}; this build reads safetensors and GGUF weights", file=path.name)


def read_start(path: Path, num_bytes: int = 8) -> bytes:
    """Return the first bytes of a file, fewer where it is shorter, none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(num_bytes)
    except OSError:
        return b""


def _add_tensors(tensors: dict[str, TensorInfo], header: SafetensorsHeader, path: Path) -> None:
    for stored in header.tensors.values():
        name = canonical_name(stored.name)
        if name.endswith(_DERIVED):
            continue
        if name in tensors:
            raise CheckpointCorrupt("holds a tensor that is there twice", file=path.name, key=stored.name)
        if stored.dtype.startswith("F8_"):
            raise CheckpointRejected(
                f"has dtype {stored.dtype}, and FP8 weights are not read by this build", file=path.name, key=stored.name
            )
        facts = stored.dtype, stored.shape, stored.offset, stored.nbytes
        tensors[name] = TensorInfo(name, stored.name, path, *facts, identity=header.identity)


def _check_index(weight_map: dict[str, str], headers: dict[str, SafetensorsHeader]) -> None:
    for name, file in weight_map.items():
        if name not in headers[file].tensors:
            raise CheckpointCorrupt("is not in the file that the index names", file=file, key=name)
    for file, header in headers.items():
        _check_listed(header.tensors, weight_map, file)


def _check_listed(names: Iterable[str], weight_map: dict[str, str], file: str) -> None:
    for name in names:
        if weight_map.get(name) != file:
            raise CheckpointCorrupt("is not listed in the index for this file", file=file, key=name)
