"""Reading and checking the header of a GGUF file, so that no other reader meets a header that lies.

Layout: magic, version, number of tensors, number of metadata entries, the entries, a description of every tensor,
then data from the next aligned offset. All numbers little-endian.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; bytes a block: ggml's `ggml-common.h`.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256 << 20
MAX_STRING_BYTES = 16 << 20
MAX_NAME_BYTES = 512
MAX_DIMENSIONS = 4
MAX_DIMENSION = (1 << 31) - 1
MAX_ALIGNMENT = 1 << 20
# Weights a block and bytes a block of the types that MLX reads.
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}

# In the order of their numbers.
# fmt: off
_TYPE_NAMES = (
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32",
    "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8",
    "IQ4_NL_8_8", "MXFP4",
)
# fmt: on
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_ALIGNMENT_KEY = "general.alignment"
_CHUNK_BYTES = 1 << 20
_DEFAULT_ALIGNMENT = 32

MetadataValue: TypeAlias = "int | float | bool | str | list[str] | npt.NDArray[Any]"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One described tensor: type word, shape outermost first, absolute offset in bytes, length in bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A checked header.

    Attributes:
        metadata: by key; arrays of strings are lists, arrays of numbers are NumPy arrays.
        tensors: by stored name.
        digest: SHA-256 of everything before the data.
        file_bytes: size of the file.
    """

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, GgufTensor]
    digest: bytes
    file_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check a header; no tensor data is read.

    Every count is bounded by the bytes that are left, every tensor lies within the file and none overlap.

    Raises:
        CheckpointMissing: the file is not there or cannot be read.
        CheckpointCorrupt: the header contradicts itself or the file.
        CheckpointRejected: a version, tensor type or value type that this build does not read.
    """
    try:
        with open_regular(path) as file:
            return _read_header(_Cursor(file, path.name))
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error


class _Cursor:
    """Reads forward through the header; every read is checked against the file's size first."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.file_bytes = os.fstat(file.fileno()).st_size
        self.position = 0
        self._file = file
        self._buffer = bytearray()

    def take(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` and move past them."""
        start = self.position
        end = start + num_bytes
        if end > len(self._buffer):
            self._fill(end)
        self.position = end
        return bytes(self._buffer[start:end])

    def number(self, code: str) -> int:
        """Return the next number; `code` is a format of `struct`."""
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self, max_bytes: int = MAX_STRING_BYTES) -> str:
        """Return the next string: its length in 8 bytes, then UTF-8."""
        length = int.from_bytes(self.take(8), "little")
        if length > max_bytes:
            raise CheckpointCorrupt(f"holds a string over {max_bytes} bytes", file=self.name)
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointCorrupt("holds a string that is not UTF-8", file=self.name) from error

    def count(self, least_bytes: int, *, width: str = "Q") -> int:
        """Return the next number as a count of things that take at least `least_bytes` each."""
        count = self.number(width)
        if count > (self.file_bytes - self.position) // least_bytes:
            raise CheckpointCorrupt("counts more entries than the file can hold", file=self.name)
        return count

    def digest(self) -> bytes:
        """Return SHA-256 of everything read so far."""
        return hashlib.sha256(memoryview(self._buffer)[: self.position]).digest()

    def _fill(self, end: int) -> None:
        if end > self.file_bytes:
            raise CheckpointCorrupt("is truncated: its header is longer than the file", file=self.name)
        if end > MAX_HEADER_BYTES:
            raise CheckpointCorrupt(f"has a header over {MAX_HEADER_BYTES} bytes", file=self.name)
        self._buffer += self._file.read(max(end - len(self._buffer), _CHUNK_BYTES))
        if end > len(self._buffer):
            raise CheckpointCorrupt("became shorter while it was read", file=self.name)


def _read_header(cursor: _Cursor) -> GgufHeader:
    if cursor.file_bytes < 24 or cursor.take(4) != MAGIC:
        raise CheckpointCorrupt("is no GGUF file", file=cursor.name)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise CheckpointRejected(f"has GGUF version {version}; this build reads 2 and 3", file=cursor.name)
    num_tensors = cursor.count(24)
    num_entries = cursor.count(13)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_entries):
        key = cursor.string(MAX_NAME_BYTES)
        if key in metadata:
            raise CheckpointCorrupt("is there twice", file=cursor.name, key=key)
        metadata[key] = _read_value(cursor, key, cursor.number("I"))
    described = [_read_tensor(cursor) for _ in range(num_tensors)]
    digest = cursor.digest()
    alignment = _alignment(metadata, cursor.name)
    data_start = -(-cursor.position // alignment) * alignment
    return GgufHeader(metadata, _placed(described, data_start, alignment, cursor), digest, cursor.file_bytes)


def _read_value(cursor: _Cursor, key: str, kind: int) -> MetadataValue:
    if key == _ALIGNMENT_KEY and kind != _UINT32:
        # Other readers take four bytes for it without a look at its type.
        raise CheckpointCorrupt("is no 32-bit number", file=cursor.name, key=key)
    if kind == _STRING:
        return cursor.string()
    if kind == _BOOL:
        return _flags(cursor.take(1), cursor, key)[0]
    if kind in _NUMBERS:
        return np.frombuffer(cursor.take(np.dtype(_NUMBERS[kind]).itemsize), _NUMBERS[kind])[0].item()
    if kind == _ARRAY:
        return _read_array(cursor, key)
    raise CheckpointCorrupt(f"has the unknown value type {kind}", file=cursor.name, key=key)


def _read_array(cursor: _Cursor, key: str) -> MetadataValue:
    kind = cursor.number("I")
    if kind == _STRING:
        return [cursor.string() for _ in range(cursor.count(8))]
    if kind == _BOOL:
        flags = _flags(cursor.take(cursor.count(1)), cursor, key)
        return np.array(flags, dtype=np.bool_)
    if kind in _NUMBERS:
        width = np.dtype(_NUMBERS[kind]).itemsize
        return np.frombuffer(cursor.take(cursor.count(width) * width), _NUMBERS[kind])
    if kind == _ARRAY:
        raise CheckpointRejected("is an array of arrays, which this build does not read", file=cursor.name, key=key)
    raise CheckpointCorrupt(f"has the unknown value type {kind}", file=cursor.name, key=key)


def _flags(content: bytes, cursor: _Cursor, key: str) -> list[bool]:
    if any(byte > 1 for byte in content):
        raise CheckpointCorrupt("has a flag that is neither 0 nor 1", file=cursor.name, key=key)
    return [byte == 1 for byte in content]


def _alignment(metadata: Mapping[str, MetadataValue], file: str) -> int:
    alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointCorrupt("is no power of two from 8", file=file, key=_ALIGNMENT_KEY)
    return alignment


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """Read one description; its offset is still counted from the start of the data."""
    name = cursor.string(MAX_NAME_BYTES)
    num_dimensions = cursor.number("I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise CheckpointCorrupt(f"has {num_dimensions} dimensions", file=cursor.name, key=name)
    sizes = [cursor.number("Q") for _ in range(num_dimensions)]
    if any(not 1 <= size <= MAX_DIMENSION for size in sizes):
        raise CheckpointCorrupt("has a shape beyond any reason", file=cursor.name, key=name)
    kind = cursor.number("I")
    word = _TYPE_NAMES[kind] if kind < len(_TYPE_NAMES) else str(kind)
    if word not in BLOCKS:
        known = ", ".join(BLOCKS)
        raise CheckpointRejected(f"tensor has type {word}; this build reads {known}", file=cursor.name, key=name)
    block_weights, block_bytes = BLOCKS[word]
    if sizes[0] % block_weights:
        raise CheckpointCorrupt(f"has rows that are no whole blocks of {block_weights}", file=cursor.name, key=name)
    nbytes = math.prod(sizes) // block_weights * block_bytes
    return GgufTensor(name, word, tuple(reversed(sizes)), cursor.number("Q"), nbytes)


def _placed(described: list[GgufTensor], data_start: int, alignment: int, cursor: _Cursor) -> dict[str, GgufTensor]:
    placed: dict[str, GgufTensor] = {}
    end = data_start
    for tensor in sorted(described, key=lambda tensor: tensor.offset):
        offset = data_start + tensor.offset
        if tensor.name in placed:
            raise CheckpointCorrupt("is described twice", file=cursor.name, key=tensor.name)
        if tensor.offset % alignment:
            raise CheckpointCorrupt("has an offset that is not aligned", file=cursor.name, key=tensor.name)
        if offset < end:
            raise CheckpointCorrupt("overlaps another tensor", file=cursor.name, key=tensor.name)
        end = offset + tensor.nbytes
        if end > cursor.file_bytes:
            raise CheckpointCorrupt("lies outside the file", file=cursor.name, key=tensor.name)
        placed[tensor.name] = GgufTensor(tensor.name, tensor.type, tensor.shape, offset, tensor.nbytes)
    return placed
