"""The tensors of a checkpoint as arrays, file by file.

A safetensors file is opened when the first of its tensors is asked for, and a tensor's bytes are read when the array is
evaluated, into memory of MLX's own: operations of a GPU read garbage from buffers of ours that do not begin on a page.
What was given out is held until it is released, so whoever goes through a whole model releases each file behind it, and
never holds more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError
from models.checkpoint.gguf_blocks import read_gguf_array
from models.checkpoint.raw_arrays import read_raw_array
from models.checkpoint.safetensors import read_safetensors_header
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.view import Repair

# (bytes done, bytes in all).
ReportBytes = Callable[[int, int], None]


class MappedTensors(Protocol):
    """Tensors that are arrays over their file."""

    def array(self, info: TensorInfo) -> mx.array | None:
        """Return a tensor in its stored shape and dtype; None where it is to be read. Raises `CheckpointError`."""
        ...


def ignore_bytes(done: int, total: int) -> None:  # noqa: ARG001 (the shape of a report)
    """Take a report and do nothing."""
    return


class Shards:
    """The tensors of one checkpoint by canonical name, as stored.

    Args:
        checkpoint: its headers, already checked.
        repair: makes arrays right as they are given out; None: all are.
        on_read: called where bytes are read as a tensor is asked for: of files that MLX does not read.
        mapped: gives what it has, which is then not read; None: all is read.

    Attributes:
        tensors: what is known of each before it is read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        repair: Repair | None = None,
        on_read: ReportBytes = ignore_bytes,
        mapped: MappedTensors | None = None,
    ) -> None:
        self.tensors: Mapping[str, TensorInfo] = checkpoint.tensors
        self._main_file = checkpoint.weights_file
        self._repair = repair
        self._on_read = on_read
        self._mapped = mapped
        self._mapped_dtypes: dict[str, mx.Dtype] = {}
        self._read_bytes = 0
        self._total_bytes = sum(info.nbytes for info in self.tensors.values())
        # Of each open file what was not given out yet.
        self._open: dict[Path, dict[str, mx.array]] = {}
        self._arrays: dict[str, mx.array] = {}

    @property
    def open_files(self) -> frozenset[Path]:
        """The safetensors files that are open."""
        return frozenset(self._open)

    def info(self, name: str) -> TensorInfo:
        """Return what is known of a tensor; raises `CheckpointCorrupt` where there is none."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointCorrupt("is missing", file=self._main_file, key=name)
        return info

    def array(self, name: str) -> mx.array:
        """Return a tensor in its stored shape and dtype, repaired; the same one until it is released.

        After an error everything that was held is let go.

        Raises:
            CheckpointError: it is missing, its file cannot be read, or is no longer what its header said.
        """
        if name not in self._arrays:
            info = self.info(name)
            try:
                stored = self._stored(info)
            except CheckpointError:
                self.close()
                raise
            repaired = None if self._repair is None else self._repair(name, stored)
            if repaired is not None:
                self._mapped_dtypes.pop(name, None)
            self._arrays[name] = stored if repaired is None else repaired
        return self._arrays[name]

    def is_mapped(self, name: str, array: mx.array) -> bool:
        """Tell whether an array that was made of a tensor is still over its file: neither repaired nor converted."""
        return name in self._mapped_dtypes and self._mapped_dtypes[name] == array.dtype

    def release(self, name: str) -> None:
        """Let go of a tensor; who asks for it again has it read again."""
        self._arrays.pop(name, None)

    def release_shard(self, file: Path) -> None:
        """Close a file and let go of all its tensors; it is opened again where one of them is asked for."""
        for name, info in self.tensors.items():
            if info.file == file:
                self.release(name)
        self._open.pop(file, None)
        mx.clear_cache()

    def close(self) -> None:
        """Let go of everything."""
        self._open.clear()
        self._arrays.clear()

    def _stored(self, info: TensorInfo) -> mx.array:
        mapped = None if self._mapped is None or info.axes or info.permuted_heads else self._mapped.array(info)
        if mapped is not None:
            self._mapped_dtypes[info.name] = mapped.dtype
            return mapped
        if info.stored_type:
            array = mx.array(read_gguf_array(info))
            self._read_bytes += info.nbytes
            self._on_read(self._read_bytes, self._total_bytes)
            return array
        if info.is_raw:
            return read_raw_array(info)
        if info.stored_name not in self._open.get(info.file, ()):
            self._open[info.file] = self._load(info.file)
        # An array that stayed here would keep its bytes once they are read.
        return self._open[info.file].pop(info.stored_name)

    def _load(self, file: Path) -> dict[str, mx.array]:
        """Open a file; MLX meets no header that was not checked, though the file may have changed since it was."""
        header = read_safetensors_header(file)
        known = {info.stored_name: info for info in self.tensors.values() if info.file == file}
        for name, info in known.items():
            stored = header.tensors.get(name)
            if stored is None or (stored.dtype, stored.shape, stored.offset) != _told(info):
                raise CheckpointCorrupt("is no longer what its header said", file=file.name, key=name)
        arrays = _loaded(file)
        for name, info in known.items():
            if name not in arrays or arrays[name].shape != info.stored_shape:
                raise CheckpointCorrupt("is not what its header says", file=file.name, key=name)
        return arrays


def _told(info: TensorInfo) -> tuple[str, tuple[int, ...], int]:
    return info.dtype, info.stored_shape, info.offset


def _loaded(file: Path) -> dict[str, mx.array]:
    try:
        loaded = mx.load(str(file), format="safetensors")
    except (RuntimeError, ValueError) as error:
        raise CheckpointCorrupt("cannot be read", file=file.name) from error
    if not isinstance(loaded, dict):
        raise CheckpointCorrupt("holds no named tensors", file=file.name)
    return loaded
