"""Where the bytes of each routed expert of a layer stand, for who reads experts as they are needed; no MLX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.expert_tensors import KINDS, ExpertsShape, Kind, StackSource, source_of
from models.checkpoint.identity import FileIdentity
from models.checkpoint.packing import groups_shape, packed_shape, packing_of
from models.checkpoint.quantization import FLOAT_MODES, LayerQuantization
from models.checkpoint.tensors import TensorInfo

# Stored and read: what readers make of numbers on their way, beside leaving them as they are.
_READ_FROM: Mapping[str, frozenset[str]] = {"F32": frozenset({"BF16", "F16"})}
_ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one expert's part of a stack begins: a file, bytes from its start, and the file as it was, if known."""

    file: Path
    offset: int
    identity: FileIdentity | None = None


@dataclass(frozen=True, slots=True)
class StoredStack:
    """One array that each expert of a layer has: its codes, or scales, or biases, or plain weights.

    Attributes:
        name: canonical name of the stack: `model.layers.0.mlp.switch_mlp.gate_proj.scales`.
        sources: canonical names of the tensors that it is made of: one, or one for each expert.
        dtype: as stored, in safetensors' words: U32, U8, F32, F16 or BF16.
        read_as: what the arithmetic reads: the same, or another of the floating ones.
        shape: of one expert's: [rows, columns], or [] where it is one number.
        places: of each expert's.
    """

    name: str
    sources: tuple[str, ...]
    dtype: str
    read_as: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]

    @property
    def is_readable(self) -> bool:
        """Whether what is stored becomes what is read on its way into memory."""
        return self.dtype == self.read_as or self.dtype in _READ_FROM.get(self.read_as, ())

    @property
    def nbytes(self) -> int:
        """Bytes of one expert's as stored, side by side."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One kind of matrix of a layer's experts.

    Attributes:
        packing: how it is packed; None: not at all.
        weight: codes, or plain weights.
        scales: of a packed one.
        biases: of one that is packed in the affine mode.
        global_scale: of a mode that may have one, where it has.
    """

    packing: LayerQuantization | None
    weight: StoredStack
    scales: StoredStack | None = None
    biases: StoredStack | None = None
    global_scale: StoredStack | None = None

    @property
    def parts(self) -> tuple[StoredStack, ...]:
        """Those that there are, in this order."""
        return tuple(part for part in (self.weight, self.scales, self.biases, self.global_scale) if part is not None)


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """All that is stored of a layer's experts."""

    shape: ExpertsShape
    gate: StoredMatrix
    up: StoredMatrix
    down: StoredMatrix

    @property
    def parts(self) -> tuple[StoredStack, ...]:
        """Of gate, up and down, in this order: up to nine."""
        return (*self.gate.parts, *self.up.parts, *self.down.parts)


class ReadAs(Protocol):
    """Tells the dtype that the arithmetic reads of a tensor: of weights and codes, or of what goes with codes."""

    def __call__(self, info: TensorInfo, *, is_weight: bool) -> str:
        """Return a word of safetensors."""
        ...


def stored_experts(checkpoint: Checkpoint, shape: ExpertsShape, read_as: ReadAs) -> StoredExperts | None:
    """Find the experts of a layer.

    Returns:
        None where a tensor is not stored as it is read, but for its dtype.

    Raises:
        CheckpointCorrupt, CheckpointRejected: a tensor is missing, or has another shape or packing, by name.
    """
    finder = _Finder(checkpoint, shape, read_as)
    gate, up, down = (finder.matrix(kind) for kind in KINDS)
    return None if gate is None or up is None or down is None else StoredExperts(shape, gate, up, down)


class _Finder:
    def __init__(self, checkpoint: Checkpoint, shape: ExpertsShape, read_as: ReadAs) -> None:
        self._checkpoint = checkpoint
        self._shape = shape
        self._read_as = read_as

    def matrix(self, kind: Kind) -> StoredMatrix | None:
        module, sizes = f"{self._shape.module}.{kind}", self._shape.matrix(kind)
        stated = self._checkpoint.layer_quantization(module)
        if stated is None:
            weight = self._stack(f"{module}.weight", source_of(self._checkpoint.tensors, self._shape, kind), sizes)
            return None if weight is None else StoredMatrix(None, weight)
        packing = stated if stated.mode in FLOAT_MODES else packing_of(self._checkpoint, module, sizes, stated)
        shapes = {"weight": packed_shape(sizes, packing), "scales": groups_shape(sizes, packing)}
        shapes |= {"biases": shapes["scales"]} if packing.has_biases else {}
        shapes |= {"global_scale": sizes[:1]} if f"{module}.global_scale" in self._checkpoint.tensors else {}
        parts = {
            part: self._stack(f"{module}.{part}", StackSource((f"{module}.{part}",)), part_sizes)
            for part, part_sizes in shapes.items()
        }
        found = {part: stack for part, stack in parts.items() if stack is not None}
        is_mixed = "biases" in found and "scales" in found and found["biases"].dtype != found["scales"].dtype
        return StoredMatrix(packing, **found) if len(found) == len(parts) and not is_mixed else None

    def _stack(self, name: str, source: StackSource, sizes: tuple[int, ...]) -> StoredStack | None:
        """Return a stack; None where a tensor is not stored as it is read."""
        infos = [self._info(each) for each in source.names]
        first = infos[0]
        if any(_is_changed(info) or info.dtype != first.dtype for info in infos):
            return None
        expected = sizes[1:] if len(infos) > 1 else sizes
        if source.half is not None:
            expected = (sizes[0], 2 * sizes[1], *sizes[2:])
        for info in infos:
            if info.shape != expected:
                problem = f"has shape {info.shape}, not {expected}"
                raise CheckpointCorrupt(problem, file=info.file.name, key=info.stored_name)
        part = name.rpartition(".")[2]
        read_as = "F32" if part == "global_scale" else self._read_as(first, is_weight=part == "weight")
        return StoredStack(name, source.names, first.dtype, read_as, sizes[1:], _places(infos, source, sizes[0]))

    def _info(self, name: str) -> TensorInfo:
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise CheckpointCorrupt("is missing", file=self._checkpoint.weights_file, key=name)
        return info


def _is_changed(info: TensorInfo) -> bool:
    is_other = info.stored_type or info.permuted_heads or info.axes or info.integers is not None
    return bool(is_other) or info.dtype not in _ITEM_BYTES


def _places(infos: list[TensorInfo], source: StackSource, num_experts: int) -> tuple[Place, ...]:
    if len(infos) > 1:
        return tuple(Place(info.file, info.offset, info.identity) for info in infos)
    (info,) = infos
    stride = info.nbytes // num_experts
    first = info.offset + (stride // 2 if source.half else 0)
    return tuple(Place(info.file, first + expert * stride, info.identity) for expert in range(num_experts))
