"""Reading and checking the header of a safetensors file, so that no reader meets a header that lies.

Layout: 8 bytes little-endian length, that many bytes of JSON, then the data.
Source: the format's description, https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import open_regular
from models.checkpoint.identity import FileIdentity
from models.checkpoint.tensors import StoredTensor

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
MAX_DIMENSION = (1 << 31) - 1
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A checked header.

    Attributes:
        tensors: by stored name.
        digest: SHA-256 of the header's bytes.
        identity: of the file.
        metadata: what it says of itself, as far as that is texts.
    """

    tensors: dict[str, StoredTensor]
    digest: bytes
    identity: FileIdentity
    metadata: Mapping[str, str]

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.identity.size_bytes


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """Read and check a header; no data is read.

    Every tensor's bytes lie within the file, none overlap, and together they cover the data exactly.

    Raises:
        CheckpointMissing: the file is not there or cannot be read.
        CheckpointCorrupt: the header contradicts itself or the file.
        CheckpointRejected: a dtype that is unknown.
    """
    raw, identity = _read_raw(path)
    data_start = _LENGTH_BYTES + len(raw)
    tensors: dict[str, StoredTensor] = {}
    entries = _parse(raw, path.name)
    said: object = entries.pop(_METADATA, {})
    for name, entry in entries.items():
        tensors[name] = _checked_tensor(name, entry, data_start, path.name)
    _check_cover(tensors, data_start, identity.size_bytes, path.name)
    return SafetensorsHeader(tensors, hashlib.sha256(raw).digest(), identity, _texts(said))


def read_safetensors_digest(path: Path) -> bytes:
    """Return the SHA-256 of a header's bytes, as `SafetensorsHeader.digest`, without looking at what they say.

    Raises:
        CheckpointMissing, CheckpointCorrupt: as `read_safetensors_header`.
    """
    return hashlib.sha256(_read_raw(path)[0]).digest()


def _read_raw(path: Path) -> tuple[bytes, FileIdentity]:
    try:
        with open_regular(path) as file:
            identity = FileIdentity.of(os.fstat(file.fileno()))
            file_bytes = identity.size_bytes
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if file_bytes < _LENGTH_BYTES or length > file_bytes - _LENGTH_BYTES:
                raise CheckpointCorrupt("is truncated: its header is longer than the file", file=path.name)
            if length > MAX_HEADER_BYTES:
                raise CheckpointCorrupt(f"has a header over {MAX_HEADER_BYTES} bytes", file=path.name)
            raw = file.read(length)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error
    if len(raw) != length:
        raise CheckpointCorrupt("became shorter while it was read", file=path.name)
    return raw, identity


def _parse(raw: bytes, file: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise CheckpointCorrupt("has a header that names a key twice", file=file)
        return entries

    if not raw.startswith(b"{"):
        raise CheckpointCorrupt("has a header that is no JSON object", file=file)
    try:
        header: object = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt("has a header that is not valid JSON", file=file) from error
    if not isinstance(header, dict):
        raise CheckpointCorrupt("has a header that is no JSON object", file=file)
    return cast("dict[str, Any]", header)


def _texts(said: object) -> dict[str, str]:
    entries = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    return {key: value for key, value in entries.items() if isinstance(value, str)}


def _checked_tensor(name: str, entry: object, data_start: int, file: str) -> StoredTensor:
    if not isinstance(entry, dict):
        raise CheckpointCorrupt("has a header entry that is no object", file=file, key=name)
    fields = cast("dict[str, object]", entry)
    dtype = fields.get("dtype")
    if not isinstance(dtype, str):
        raise CheckpointCorrupt("has no dtype", file=file, key=name)
    if dtype not in DTYPE_BYTES:
        raise CheckpointRejected(f"has dtype {dtype}, which this build does not read", file=file, key=name)
    shape = _checked_ints(fields.get("shape"), "shape", file, name)
    if len(shape) > MAX_DIMENSIONS or any(size > MAX_DIMENSION for size in shape):
        raise CheckpointCorrupt("has a shape beyond any reason", file=file, key=name)
    offsets = _checked_ints(fields.get("data_offsets"), "data_offsets", file, name)
    if len(offsets) != 2 or offsets[1] < offsets[0]:
        raise CheckpointCorrupt("has data_offsets that are no range", file=file, key=name)
    nbytes = offsets[1] - offsets[0]
    if nbytes != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise CheckpointCorrupt("has data_offsets that do not fit its shape and dtype", file=file, key=name)
    return StoredTensor(name, dtype, shape, data_start + offsets[0], nbytes)


def _checked_ints(value: object, field: str, file: str, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise CheckpointCorrupt(f"has no {field}", file=file, key=name)
    numbers = cast("list[object]", value)
    checked = tuple(number for number in numbers if type(number) is int and number >= 0)
    if len(checked) != len(numbers):
        raise CheckpointCorrupt(f"has a {field} that is not all whole numbers from 0", file=file, key=name)
    return checked


def _check_cover(tensors: dict[str, StoredTensor], data_start: int, file_bytes: int, file: str) -> None:
    position = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset + tensor.nbytes > file_bytes:
            raise CheckpointCorrupt("has data that lies outside the file", file=file, key=tensor.name)
        if tensor.offset != position:
            raise CheckpointCorrupt("has data that leaves a gap or overlaps", file=file, key=tensor.name)
        position += tensor.nbytes
    if position != file_bytes:
        raise CheckpointCorrupt("is longer than its tensors", file=file)
