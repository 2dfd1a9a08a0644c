"""A pack: one file beside a checkpoint that holds its routed experts, each tensor from the start of a page; no MLX.

    page 0      the file's own header: `_HEADER`, and in the page's last 32 bytes a SHA-256 of all before
    pages 1 …   the tensors' bytes, as the weight files have them, each from a multiple of 16,384 on
    then        the manifest, as JSON: what it was made of, and every tensor's name, dtype, shape, place and SHA-256

All of the header and the manifest is checked whenever a pack is opened, and that it was made of the weight files that
are there now. The tensors' own bytes are checked by `check_data` alone, which reads them all.

A pack lies in the checkpoint's folder, also in that of a hub's cache, whose other files are links: it is found by
whoever finds the model, goes where the folder goes, and is gone when that is removed. A folder that cannot be written
gets none; experts are then read from the weight files themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import inside, open_regular, parse_object
from models.checkpoint.identity import FileIdentity
from models.checkpoint.safetensors import DTYPE_BYTES, MAX_DIMENSION, MAX_DIMENSIONS
from models.checkpoint.tensors import TensorInfo
from models.experts.pack_layout import PackTensor, Segment, pack_tensors
from models.experts.sources import SourceFile, digest_of, first_difference, source_files

PACK_FILE = "experts.pack"
PAGE_BYTES = 16_384
FORMAT = 1
MAX_MANIFEST_BYTES = 256 << 20
CHUNK_BYTES = 8 << 20
REMEDY = "pomona pack-experts makes it anew"

# Magic, format, page; then the manifest's offset and length and the file's length, in bytes; the manifest's SHA-256.
_HEADER = struct.Struct("<8sIIQQQ32s")
_MAGIC = b"POMOPACK"
_DIGEST_BYTES = 32

Checkpointed = TypeVar("Checkpointed", bound=Checkpoint)


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One tensor of a pack.

    Attributes:
        name: canonical name.
        dtype: safetensors word.
        shape: outermost dimension first, as stored.
        parts: as `PackTensor.parts`.
        offset: bytes from the start of the pack, a multiple of `PAGE_BYTES`.
        nbytes: of the tensor.
        digest: SHA-256 of its bytes, in hex.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    offset: int
    nbytes: int
    digest: str

    def is_of(self, tensor: PackTensor) -> bool:
        """Tell whether it is the one that a pack would hold for `tensor`."""
        found = (self.name, self.dtype, self.shape, self.parts, self.nbytes)
        return found == (tensor.name, tensor.dtype, tensor.shape, tensor.parts, tensor.nbytes)


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack whose header and manifest were checked.

    Attributes:
        file: where it lies.
        identity: of the file that was checked.
        entries: by canonical name, in the order of the file.
        sources: what it was made of.
    """

    file: Path
    identity: FileIdentity
    entries: Mapping[str, PackEntry]
    sources: tuple[SourceFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in it."""
        return sum(entry.nbytes for entry in self.entries.values())

    def applied(self, checkpoint: Checkpointed) -> Checkpointed:
        """Return the same checkpoint with its experts where this pack has them; those that it lacks stay.

        Stacks that this pack put together stand there under their own names, and what they were made of no more.

        Raises:
            CheckpointCorrupt: a tensor here is none of the checkpoint's, or has another dtype or shape.
        """
        wanted = {tensor.name: tensor for tensor in pack_tensors(checkpoint.tensors)}
        placed: dict[str, TensorInfo] = {}
        for name, entry in self.entries.items():
            if name not in wanted or not entry.is_of(wanted[name]):
                raise CheckpointCorrupt("is no tensor of this checkpoint", file=PACK_FILE, key=name)
            first = checkpoint.tensors[entry.parts[0]]
            placed[name] = self._placed(entry, first if entry.parts == (name,) else None)
        gone = {part for entry in self.entries.values() for part in entry.parts}
        rest = {name: info for name, info in checkpoint.tensors.items() if name not in gone}
        return replace(checkpoint, tensors={**rest, **placed})

    def _placed(self, entry: PackEntry, stored: TensorInfo | None) -> TensorInfo:
        """Return where a tensor lies now, given what the checkpoint says of it if it has one of this name."""
        if stored is not None:
            return replace(stored, file=self.file, offset=entry.offset, is_raw=True, identity=self.identity)
        facts = self.file, entry.dtype, entry.shape, entry.offset, entry.nbytes
        return TensorInfo(entry.name, entry.name, *facts, is_raw=True, identity=self.identity)

    def check_unchanged(self) -> None:
        """Refuse to go on where the path no longer leads to the file that was checked.

        Raises:
            CheckpointCorrupt: it was replaced, removed or written to.
        """
        self.identity.check(self.file)

    def check_data(self, report: Callable[[int, int], None]) -> None:
        """Read every tensor and compare it with its SHA-256.

        Args:
            report: called with (bytes read, bytes in all).

        Raises:
            CheckpointCorrupt: one has other bytes than were written, or cannot be read.
        """
        done, total, buffer = 0, self.nbytes, memoryview(bytearray(CHUNK_BYTES))
        with open_regular(self.file) as file:
            for entry in self.entries.values():
                digest = hashlib.sha256()
                for piece in pieces(file, Segment(self.file, entry.offset, entry.nbytes, entry.name), buffer):
                    digest.update(piece)
                    done += len(piece)
                    report(done, total)
                if digest.hexdigest() != entry.digest:
                    problem = "has other bytes than were written; pomona pack-experts --force makes the pack anew"
                    raise CheckpointCorrupt(problem, file=PACK_FILE, key=entry.name)


def find_pack(checkpoint: Checkpoint) -> Pack | None:
    """Return the pack beside a checkpoint, for exactly its weights; None where there is none.

    Raises:
        CheckpointRejected: it was made of other weights, or by another version.
        CheckpointCorrupt: it contradicts itself or breaks off.
        CheckpointMissing: it cannot be read.
    """
    files = [info.file for info in checkpoint.tensors.values() if not info.is_raw]
    if checkpoint.format != "safetensors" or not files or not (files[0].parent / PACK_FILE).exists():
        return None
    return open_pack(files[0].parent, pack_tensors(checkpoint.tensors))


def open_pack(folder: Path, tensors: Iterable[PackTensor]) -> Pack:
    """Open the pack in a folder, which is to hold these tensors; raises as `find_pack`, and where there is none."""
    path = inside(folder, PACK_FILE, named_by=PACK_FILE)
    try:
        pack = read_pack(path)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"{error.problem}; {REMEDY}", file=PACK_FILE, key=error.key) from error
    files = (segment.file for tensor in tensors for segment in tensor.segments)
    if difference := first_difference(pack.sources, source_files(files)):
        raise CheckpointRejected(f"was made of other weights: {difference}; {REMEDY}", file=PACK_FILE)
    return pack


def read_pack(path: Path) -> Pack:
    """Read and check the header and the manifest of a pack, whatever it was made of; raises as `find_pack`."""
    try:
        with open_regular(path) as file:
            identity = FileIdentity.of(os.fstat(file.fileno()))
            offset, num_bytes, digest = _read_header(file.read(PAGE_BYTES), identity.size_bytes)
            file.seek(offset)
            manifest = file.read(num_bytes)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error
    if digest_of(manifest) != digest:
        raise CheckpointCorrupt("has a manifest that is not the one that was written", file=PACK_FILE)
    return _read_manifest(parse_object(manifest, PACK_FILE), path, identity, offset)


def write_header(manifest: bytes, offset: int) -> bytes:
    """Return the first page of a pack whose manifest lies at `offset`."""
    facts = _MAGIC, FORMAT, PAGE_BYTES, offset, len(manifest), offset + len(manifest), digest_of(manifest)
    page = _HEADER.pack(*facts).ljust(PAGE_BYTES - _DIGEST_BYTES, b"\0")
    return page + digest_of(page)


def write_manifest(sources: Iterable[SourceFile], entries: Iterable[PackEntry]) -> bytes:
    """Return the manifest of a pack."""
    tensors = [asdict(entry) for entry in entries]
    manifest = {
        "format": FORMAT,
        "page": PAGE_BYTES,
        "total_bytes": sum(entry["nbytes"] for entry in tensors),
        "sources": [source.as_json() for source in sources],
        "tensors": tensors,
    }
    return json.dumps(manifest, separators=(",", ":")).encode()


def page_aligned(offset: int) -> int:
    """Return the first start of a page at or behind an offset."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES


def pieces(file: BinaryIO, segment: Segment, buffer: memoryview) -> Iterable[memoryview]:
    """Read bytes of an open file through a buffer, piece by piece.

    Raises:
        CheckpointCorrupt: the file ends before they do, or cannot be read.
    """
    left = segment.nbytes
    try:
        file.seek(segment.offset)
        while left:
            count = cast("Any", file).readinto(buffer[: min(left, len(buffer))])
            if not count:
                raise CheckpointCorrupt("breaks off", file=segment.file.name, key=segment.key)
            left -= count
            yield buffer[:count]
    except OSError as error:
        raise CheckpointCorrupt("cannot be read", file=segment.file.name, key=segment.key) from error


def _read_header(page: bytes, file_bytes: int) -> tuple[int, int, bytes]:
    """Return the manifest's offset, length and SHA-256."""
    if not page.startswith(_MAGIC):
        raise CheckpointCorrupt("is no pack of experts", file=PACK_FILE)
    if len(page) < PAGE_BYTES:
        raise CheckpointCorrupt("is truncated", file=PACK_FILE)
    if digest_of(page[:-_DIGEST_BYTES]) != page[-_DIGEST_BYTES:]:
        raise CheckpointCorrupt("has a header that is not the one that was written", file=PACK_FILE)
    _, version, page_bytes, offset, num_bytes, total_bytes, digest = _HEADER.unpack_from(page)
    if (version, page_bytes) != (FORMAT, PAGE_BYTES):
        problem = f"is of format {version} with pages of {page_bytes} bytes, which this build does not read; {REMEDY}"
        raise CheckpointRejected(problem, file=PACK_FILE)
    if file_bytes != total_bytes:
        words = "is truncated" if file_bytes < total_bytes else "is longer than it was written"
        raise CheckpointCorrupt(f"{words}: {file_bytes} bytes instead of {total_bytes}", file=PACK_FILE)
    if offset + num_bytes != total_bytes or offset % PAGE_BYTES or num_bytes > MAX_MANIFEST_BYTES:
        raise CheckpointCorrupt("has a manifest that lies outside the file", file=PACK_FILE)
    return offset, num_bytes, digest


def _read_manifest(manifest: Mapping[str, Any], path: Path, identity: FileIdentity, data_end: int) -> Pack:
    try:
        sources = [SourceFile.from_json(each) for each in manifest["sources"]]
        entries = [_entry(each) for each in manifest["tensors"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorrupt("has a manifest that says too little", file=PACK_FILE) from error
    known = tuple(source for source in sources if source is not None)
    if len(known) != len(sources) or not entries or len({entry.name for entry in entries}) != len(entries):
        raise CheckpointCorrupt("has a manifest that contradicts itself", file=PACK_FILE)
    _check_places(entries, data_end)
    return Pack(path, identity, {entry.name: entry for entry in entries}, known)


def _entry(said: Mapping[str, Any]) -> PackEntry:
    shape, parts = tuple(cast("list[Any]", said["shape"])), tuple(cast("list[Any]", said["parts"]))
    name, dtype, digest = texts = said["name"], said["dtype"], said["digest"]
    offset, nbytes = places = said["offset"], said["nbytes"]
    if any(type(text) is not str for text in (*texts, *parts)) or not parts:
        raise TypeError
    if any(type(number) is not int for number in (*places, *shape)):
        raise TypeError
    return PackEntry(name, dtype, shape, parts, offset, nbytes, digest)


def _check_places(entries: Iterable[PackEntry], data_end: int) -> None:
    """Refuse entries that overlap, leave the file, begin within a page, or have other bytes than their shape."""
    position = PAGE_BYTES
    for entry in entries:
        is_shape = len(entry.shape) <= MAX_DIMENSIONS and all(0 <= size <= MAX_DIMENSION for size in entry.shape)
        if not is_shape or entry.nbytes != math.prod(entry.shape) * DTYPE_BYTES.get(entry.dtype, -1):
            raise CheckpointCorrupt(
                "has a length that does not fit its shape and dtype", file=PACK_FILE, key=entry.name
            )
        if entry.offset % PAGE_BYTES or entry.offset < position or entry.offset + entry.nbytes > data_end:
            raise CheckpointCorrupt("lies where no tensor of a pack lies", file=PACK_FILE, key=entry.name)
        position = entry.offset + entry.nbytes
