"""Reading the header of a CTranslate2 `model.bin`, bounds-checked; no weights are read.

All numbers are little-endian. The file is: version (4 bytes), the specification's name and its revision (4 bytes), a
count and the variables, a count and the aliases. A name is a length (2 bytes, its closing zero counted) and bytes. A
variable is a name, its rank (1 byte), its sizes (4 bytes each), its dtype (1 byte), its length in bytes (4 bytes) and
those bytes. An alias is two names: its own and that of a variable.
Source: CTranslate2's `python/ctranslate2/specs/model_spec.py` and `src/models/model.cc`, binary version 6.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import open_regular
from models.checkpoint.tensors import StoredTensor

MODEL_FILE = "model.bin"
_VERSION = 6
_DTYPES = {0: ("F32", 4), 1: ("I8", 1), 2: ("I16", 2), 3: ("I32", 4), 4: ("F16", 2), 5: ("BF16", 2)}
_MAX_ENTRIES = 1 << 16
_MAX_RANK = 8
_MAX_SCALAR_BYTES = 8


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A checked header.

    Attributes:
        path: the file.
        specification: name of the kind of model, `WhisperSpec`.
        variables: by name.
        scalars: values of the whole-number variables without dimensions, by name.
        aliases: the name of a variable by another name for it.
        digest: SHA-256 of everything but the weights.
    """

    path: Path
    specification: str
    variables: dict[str, StoredTensor]
    scalars: dict[str, int]
    aliases: dict[str, str]
    digest: bytes


def read_model_file(path: Path) -> ModelFile:
    """Read and check a header.

    Raises:
        CheckpointMissing: the file is not there or cannot be read.
        CheckpointCorrupt: it breaks off, contradicts itself or goes on after its end.
        CheckpointRejected: a version or dtype that this build does not read.
    """
    try:
        with open_regular(path) as file:
            return _Reader(path, file).model()
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error


class _Reader:
    """Walks over a file, never past its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._hash = hashlib.sha256()

    def model(self) -> ModelFile:
        version = self._number(4)
        if version != _VERSION:
            raise CheckpointRejected(f"is of version {version}, which is not read", file=self._path.name)
        specification = self._name()
        self._number(4)
        variables: dict[str, StoredTensor] = {}
        scalars: dict[str, int] = {}
        for _ in range(self._count()):
            variable = self._variable(scalars)
            if variable.name in variables:
                raise self._corrupt("is there twice", variable.name)
            variables[variable.name] = variable
        aliases = {self._name(): self._name() for _ in range(self._count())}
        for alias, name in aliases.items():
            if name not in variables or alias in variables:
                raise self._corrupt("is another name of nothing", alias)
        if self._file.tell() != self._size:
            raise self._corrupt("goes on after its end")
        return ModelFile(self._path, specification, variables, scalars, aliases, self._hash.digest())

    def _variable(self, scalars: dict[str, int]) -> StoredTensor:
        name = self._name()
        rank = self._number(1)
        if rank > _MAX_RANK:
            raise self._corrupt("has a shape beyond any reason", name)
        shape = tuple(self._number(4) for _ in range(rank))
        dtype_id = self._number(1)
        if dtype_id not in _DTYPES:
            raise CheckpointRejected(f"has dtype {dtype_id}, which is not read", file=self._path.name, key=name)
        dtype, item_bytes = _DTYPES[dtype_id]
        nbytes = self._number(4)
        if nbytes != math.prod(shape) * item_bytes:
            raise self._corrupt("has a length that does not fit its shape", name)
        offset = self._file.tell()
        if nbytes > self._size - offset:
            raise self._corrupt("breaks off", name)
        if not shape and dtype.startswith("I"):
            scalars[name] = int.from_bytes(self._bytes(min(nbytes, _MAX_SCALAR_BYTES)), "little", signed=True)
        else:
            self._file.seek(nbytes, os.SEEK_CUR)
        return StoredTensor(name, dtype, shape, offset, nbytes)

    def _count(self) -> int:
        count = self._number(4)
        if count > _MAX_ENTRIES:
            raise self._corrupt(f"has more than {_MAX_ENTRIES} entries")
        return count

    def _name(self) -> str:
        raw = self._bytes(self._number(2))
        try:
            text = raw.decode("utf-8")
        except ValueError as error:
            raise self._corrupt("has a name that is no text") from error
        if not text.endswith("\0") or "\0" in text[:-1] or len(text) < 2:
            raise self._corrupt("has a name that does not end where it says")
        return text[:-1]

    def _number(self, num_bytes: int) -> int:
        return int.from_bytes(self._bytes(num_bytes), "little")

    def _bytes(self, count: int) -> bytes:
        raw = self._file.read(count)
        if len(raw) != count:
            raise self._corrupt("breaks off")
        self._hash.update(raw)
        return raw

    def _corrupt(self, problem: str, key: str = "") -> CheckpointCorrupt:
        return CheckpointCorrupt(problem, file=self._path.name, key=key)
