"""Writing a fused folder, so that at its path there is at every moment a whole one or none.

It is written beside its place under another name, brought to the disk, and renamed once it was found right. The
unfinished folder is also the lock (flock(2)): one that a killed process left behind is taken over by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from models.adapters.adapter import Adapter
from models.checkpoint.auxiliary_files import copy_auxiliary_files
from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.files import MAX_JSON_BYTES, inside, open_regular, parse_object, read_bytes
from models.checkpoint.folder import INDEX_FILE
from models.checkpoint.names import canonical_name
from models.checkpoint.tensors import StoredTensor
from models.checkpoint.text_config import CONFIG_FILE
from models.disk import FULL_ERRORS, is_at, sync_path
from models.fusing.errors import FuseBusy, FuseDiskFull, FuseUnwritable
from models.fusing.layers import fused_parts
from models.fusing.plan import FusedFile, FusedTensor, FusePlan

CHUNK_BYTES = 8 << 20
MARK_FILE = ".pomona-fuse"  # in an unfinished folder: says that all that is in it may be removed
_QUANTIZATION_KEYS = ("quantization", "quantization_config")

ReportPhase = Callable[[str, int, int], None]
"""Takes the phase in a word, bytes done and bytes in all."""


@contextlib.contextmanager
def unfinished(path: Path) -> Generator[Path]:
    """Hold the unfinished folder of a path; it is gone at the end, unless it was renamed.

    Raises:
        FuseBusy: another process holds it.
        FuseUnwritable: it cannot be made, or something else is in its place.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.mkdir(exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise FuseUnwritable(_words(path, error)) from error
    try:
        _lock(path, partial, descriptor)
        _empty(path, partial)
    except BaseException:
        os.close(descriptor)
        raise
    try:
        yield partial
    finally:
        if is_at(partial, descriptor) and _has_lock(descriptor):
            shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def write_fused(plan: FusePlan, adapter: Adapter, partial: Path, report: ReportPhase) -> None:
    """Write everything of a plan into an unfinished folder, and bring it to the disk.

    Args:
        plan: what to write.
        adapter: its numbers.
        partial: the folder, see `unfinished`.
        report: called while it is written, with every few MiB.

    Raises:
        FuseDiskFull: the disk has no room for it.
        FuseUnwritable: it cannot be written.
        CheckpointError: the checkpoint cannot be read, or changed meanwhile.
    """
    if plan.needed_bytes > plan.free_bytes:
        raise FuseDiskFull(plan.needed_bytes, plan.free_bytes)
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report("fusing", done, plan.nbytes)

    count(0)
    try:
        for file in plan.files:
            _write_file(file, adapter, partial / file.source.name, count)
        _write_json(partial / CONFIG_FILE, _config(plan))
        if len(plan.files) > 1:
            _write_json(partial / INDEX_FILE, _index(plan))
        copy_auxiliary_files(plan.source, partial)
        report("syncing", 0, 0)
        for path in (*partial.iterdir(), partial):
            sync_path(path)
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise FuseDiskFull(plan.needed_bytes, None) from error
        raise FuseUnwritable(_words(plan.path, error)) from error


def put_in_place(plan: FusePlan, partial: Path) -> None:
    """Give a finished folder its name.

    Raises:
        FuseUnwritable: that cannot be done.
    """
    try:
        (partial / MARK_FILE).unlink(missing_ok=True)
        partial.rename(plan.path)
        sync_path(plan.path.parent)
    except OSError as error:
        raise FuseUnwritable(_words(plan.path, error)) from error


def _write_file(file: FusedFile, adapter: Adapter, path: Path, count: Callable[[int], None]) -> None:
    made: dict[str, Mapping[str, Any]] = {}
    with path.open("wb") as target, open_regular(file.source) as source:
        target.write(_header(file))
        for tensor in file.tensors:
            if tensor.layer is None:
                _copy(source, cast("StoredTensor", tensor.source), target, count)
                continue
            module = tensor.layer.module
            if module not in made:
                # Parts of one layer mostly follow one another; whoever asks again later computes them again.
                made = {module: fused_parts(tensor.layer, adapter.layers[module])}
            _write_all(target, tensor, made[module][tensor.part])
            count(tensor.nbytes)


def _write_all(target: BinaryIO, tensor: FusedTensor, numbers: Any) -> None:
    content = memoryview(numbers).cast("B")
    if content.nbytes != tensor.nbytes:
        raise CheckpointCorrupt("is not of the size that was planned", file=target.name, key=tensor.name)
    target.write(content)


def _copy(source: BinaryIO, stored: StoredTensor, target: BinaryIO, count: Callable[[int], None]) -> None:
    source.seek(stored.offset)
    left = stored.nbytes
    while left:
        content = source.read(min(left, CHUNK_BYTES))
        if not content:
            raise CheckpointCorrupt("became shorter while it was read", file=Path(source.name).name, key=stored.name)
        target.write(content)
        left -= len(content)
        count(len(content))


def _header(file: FusedFile) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(file.metadata)} if file.metadata else {}
    end = 0
    for tensor in file.tensors:
        start, end = end, end + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that numbers begin where 8 bytes do
    return len(text).to_bytes(8, "little") + text


def _config(plan: FusePlan) -> dict[str, Any]:
    """Return the checkpoint's config, which says of no unpacked layer how it is packed."""
    config = parse_object(
        read_bytes(inside(plan.source, CONFIG_FILE, named_by=CONFIG_FILE), MAX_JSON_BYTES), CONFIG_FILE
    )
    unpacked = {module for module, layer in plan.layers.items() if layer.packing and not layer.is_packed_again}
    for key in _QUANTIZATION_KEYS:
        block = config.get(key)
        if isinstance(block, dict) and not plan.keeps_packed:
            del config[key]
        elif isinstance(block, dict):
            config[key] = _without(cast("dict[str, Any]", block), unpacked)
    return config


def _without(block: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Any]:
    """Return a config's block of quantization with `false` for modules that it says something of."""
    names = frozenset(modules)
    return {
        name: False if isinstance(value, dict) and canonical_name(name) in names else value
        for name, value in block.items()
    }


def _index(plan: FusePlan) -> dict[str, Any]:
    weight_map = {tensor.name: file.source.name for file in plan.files for tensor in file.tensors}
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": weight_map}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _lock(path: Path, partial: Path, descriptor: int) -> None:
    # Its holder may have finished, and given it its name, since it was opened.
    if not _has_lock(descriptor) or not is_at(partial, descriptor):
        raise FuseBusy(path.name)


def _empty(path: Path, partial: Path) -> None:
    """Remove what a killed process left, and mark the folder; what is not marked, or has folders, is not ours."""
    try:
        found = list(partial.iterdir())
        is_ours = partial / MARK_FILE in found and not any(each.is_dir() and not each.is_symlink() for each in found)
        if found and not is_ours:
            raise FuseUnwritable(f"{path.name} cannot be written: {partial.name} holds what no fusing left there")
        (partial / MARK_FILE).touch()
        for each in found:
            if each.name != MARK_FILE:
                each.unlink()
    except OSError as error:
        raise FuseUnwritable(_words(path, error)) from error


def _has_lock(descriptor: int) -> bool:
    """Take the lock where nobody else has it; to take it again changes nothing."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _words(path: Path, error: OSError) -> str:
    return f"{path.name} cannot be written: {os.strerror(error.errno or 0)}"
