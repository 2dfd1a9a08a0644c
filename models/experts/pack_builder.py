"""Writing the pack of a checkpoint, so that at its path there is at every moment a whole pack or none; no MLX.

It is written under another name, brought to the disk, and renamed. That unfinished file is also the lock: whoever packs
holds it (flock(2)), and one that a killed process left behind is taken over by the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.files import open_regular
from models.checkpoint.tensors import TensorInfo
from models.disk import FULL_ERRORS, SPARE_BYTES, is_at, sync, sync_path
from models.experts.errors import PackBusy, PackDiskFull, PackUnwritable
from models.experts.pack import (
    CHUNK_BYTES,
    PACK_FILE,
    PAGE_BYTES,
    REMEDY,
    Pack,
    PackEntry,
    open_pack,
    page_aligned,
    pieces,
    read_pack,
    write_header,
    write_manifest,
)
from models.experts.pack_layout import PackTensor, pack_tensors
from models.experts.sources import SourceFile, first_difference, source_files

PARTIAL_FILE = f"{PACK_FILE}.partial"
# Of the manifest: for every tensor its facts and hash, and what separates its parts' names.
_ENTRY_BYTES, _PART_BYTES = 512, 8
_MAX_LOCK_TRIES = 16
_READ_ONLY_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}

ReportPhase = Callable[[str, int, int], None]
"""Takes the phase in a word, bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What packing a checkpoint would write.

    Attributes:
        tensors: what it holds, in its order.
        path: where the pack is to lie.
        needed_bytes: of the disk, at most.
        free_bytes: of the disk now, but for what others are left; an unfinished pack counts as free.
    """

    tensors: Sequence[PackTensor]
    path: Path
    needed_bytes: int
    free_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack that is there.

    Attributes:
        pack: it.
        is_new: whether it was written now.
        why: the one that was there did not fit; empty where there was none, it was kept, or nobody looked.
    """

    pack: Pack
    is_new: bool
    why: str = ""


def plan_pack(folder: Path, tensors: Mapping[str, TensorInfo]) -> PackPlan:
    """Say what packing the experts of a checkpoint's folder would write.

    Args:
        folder: of the checkpoint.
        tensors: of its headers, by canonical name.

    Raises:
        CheckpointRejected: it has no routed experts.
        PackUnwritable: nothing is known of its disk.
    """
    packed = pack_tensors(tensors)
    if not packed:
        raise CheckpointRejected("has no routed experts, so there is nothing to pack", file=folder.name)
    named = sum(len(part) + _PART_BYTES for tensor in packed for part in tensor.parts)
    needed = PAGE_BYTES + sum(page_aligned(tensor.nbytes) + _ENTRY_BYTES for tensor in packed) + named
    try:
        free = shutil.disk_usage(folder).free - SPARE_BYTES
        with contextlib.suppress(FileNotFoundError):
            free += (folder / PARTIAL_FILE).stat().st_blocks * 512
    except OSError as error:
        raise PackUnwritable(_words(error)) from error
    return PackPlan(packed, folder / PACK_FILE, needed, max(0, free))


def build_pack(
    plan: PackPlan, report: ReportPhase, on_stale: Callable[[str], None] = lambda _: None, *, force: bool = False
) -> Packed:
    """Have the pack of a plan on the disk; one that is there and fits is kept, also where nothing can be written.

    Args:
        plan: what to write.
        report: called while it is written, with every few MiB.
        on_stale: called before it is, with why the one that is there does not do.
        force: write it anew, whatever is there.

    Raises:
        PackBusy: another process writes it.
        PackDiskFull: the disk has no room for it.
        PackUnwritable: the folder cannot be written, or its disk fails.
        CheckpointError: the weight files cannot be read, or changed meanwhile.
    """
    try:
        with _locked(plan.path.with_name(PARTIAL_FILE)) as partial:
            why = ""
            if plan.path.exists() and not force:
                kept = _fitting(plan)
                if isinstance(kept, Pack):
                    return Packed(kept, is_new=False)
                why = kept
                on_stale(why)
            if plan.needed_bytes > plan.free_bytes:
                raise PackDiskFull(plan.needed_bytes, plan.free_bytes)
            _write(plan, partial, report)
            partial_path = plan.path.with_name(PARTIAL_FILE)
            partial_path.replace(plan.path)
            sync_path(plan.path.parent)
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise PackDiskFull(plan.needed_bytes, None) from error
        if error.errno in _READ_ONLY_ERRORS and not force and isinstance(kept := _fitting(plan), Pack):
            return Packed(kept, is_new=False)
        raise PackUnwritable(_words(error)) from error
    return Packed(read_pack(plan.path), is_new=True, why=why)


def remove_pack(folder: Path) -> int:
    """Remove the pack in a folder, and an unfinished one, and return the bytes that are freed.

    Models that have it mapped keep it until they are gone.

    Raises:
        PackBusy: another process writes one.
        PackUnwritable: the folder cannot be written.
    """
    pack, partial, freed = folder / PACK_FILE, folder / PARTIAL_FILE, 0
    try:
        if os.path.lexists(pack) or os.path.lexists(partial):
            freed = _size(partial)  # a link goes with the lock
            with _locked(partial):
                freed += _size(pack)
                pack.unlink(missing_ok=True)
    except OSError as error:
        raise PackUnwritable(_words(error)) from error
    return freed


def _size(path: Path) -> int:
    """Return the bytes of a file, of a link its own; 0 where there is none."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _locked(path: Path) -> Generator[BinaryIO]:
    """Hold the unfinished file; what is still under its name at the end is removed.

    Raises:
        PackBusy: another process holds it.
        OSError: it cannot be made.
    """
    with _lock(path) as file:
        try:
            yield file
        finally:
            if is_at(path, file.fileno()):
                path.unlink(missing_ok=True)


def _lock(path: Path) -> BinaryIO:
    for _ in range(_MAX_LOCK_TRIES):
        if path.is_symlink():
            path.unlink(missing_ok=True)  # no builder makes one, and what it leads to is not ours to write
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644), "r+b", 0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise PackBusy from error
        # Its holder may have finished, and given it another name, between the two calls.
        if is_at(path, file.fileno()):
            return file
        file.close()
    raise PackBusy


def _fitting(plan: PackPlan) -> Pack | str:
    """Return the pack that is there if it is the one that would be written; else why it is not."""
    try:
        pack = open_pack(plan.path.parent, plan.tensors)
    except CheckpointError as error:
        return f"the one that is there {error.problem.removesuffix(f'; {REMEDY}')}"
    entries = list(pack.entries.values())
    fits = len(entries) == len(plan.tensors) and all(map(PackEntry.is_of, entries, plan.tensors))
    return pack if fits else "the one that is there holds other tensors"


def _write(plan: PackPlan, partial: BinaryIO, report: ReportPhase) -> None:
    """Write a whole pack and bring it to the disk; the header last, so that no part of it passes for a pack."""
    report("checking", 0, 0)
    files = {segment.file for tensor in plan.tensors for segment in tensor.segments}
    sources = source_files(files)
    partial.truncate(0)
    entries, end = _write_tensors(plan, partial, report)
    if difference := first_difference(sources, source_files(files)):
        raise CheckpointCorrupt(f"changed while it was packed: {difference}", file=plan.path.parent.name)
    report("syncing", 0, 0)
    _finish(partial, sources, entries, page_aligned(end))


def _write_tensors(plan: PackPlan, partial: BinaryIO, report: ReportPhase) -> tuple[list[PackEntry], int]:
    """Return the entries, and where the last of them ends."""
    entries: list[PackEntry] = []
    done, total, end, buffer = 0, plan.nbytes, PAGE_BYTES, memoryview(bytearray(CHUNK_BYTES))
    report("packing", 0, total)
    with contextlib.ExitStack() as opened:
        files: dict[Path, BinaryIO] = {}
        for tensor in plan.tensors:
            offset, digest = page_aligned(end), hashlib.sha256()
            partial.seek(offset)
            for segment in tensor.segments:
                if segment.file not in files:
                    files[segment.file] = opened.enter_context(open_regular(segment.file))
                for piece in pieces(files[segment.file], segment, buffer):
                    digest.update(piece)
                    _write_all(partial, piece)
                    done += len(piece)
                    report("packing", done, total)
            end = offset + tensor.nbytes
            facts = tensor.name, tensor.dtype, tensor.shape, tensor.parts, offset, tensor.nbytes
            entries.append(PackEntry(*facts, digest.hexdigest()))
    return entries, end


def _finish(partial: BinaryIO, sources: Iterable[SourceFile], entries: Iterable[PackEntry], offset: int) -> None:
    manifest = write_manifest(sources, entries)
    partial.truncate(offset)
    for position, content in ((offset, manifest), (0, write_header(manifest, offset))):
        partial.seek(position)
        _write_all(partial, memoryview(content))
    sync(partial.fileno())


def _write_all(file: BinaryIO, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


def _words(error: OSError) -> str:
    what = "cannot be written" if error.errno in _READ_ONLY_ERRORS else "cannot take a pack"
    return f"the checkpoint's folder {what}: {os.strerror(error.errno or 0)}"
