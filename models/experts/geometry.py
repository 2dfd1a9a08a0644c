"""What the experts of some layers have in common, so that they can lie in the same slots: shapes, dtypes, packing."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.quantization import FLOAT_MODES, LayerQuantization
from models.checkpoint.raw_arrays import MLX_DTYPES
from models.checkpoint.stored_experts import StoredExperts, StoredMatrix, StoredStack
from models.layers.expert_stacks import ExpertMatrix, ExpertStacks
from models.layers.quantized import FloatMatrix, QuantizedMatrix
from native.slab import Conversion

_CONVERSIONS: Mapping[str, Conversion] = {"BF16": "from_bfloat16", "F16": "from_float16"}


@dataclass(frozen=True, slots=True)
class Part:
    """An array that each expert has, as it is computed with.

    Attributes:
        shape: of one expert's.
        dtype: safetensors' word.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def mlx_dtype(self) -> mx.Dtype:
        """The dtype."""
        return MLX_DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of one expert's."""
        return math.prod(self.shape) * self.mlx_dtype.size


@dataclass(frozen=True, slots=True)
class Matrix:
    """One kind of matrix.

    Attributes:
        packing: how it is packed; None: not at all.
        parts: weight or codes, and what goes with codes, in the order of `StoredMatrix.parts`.
    """

    packing: LayerQuantization | None
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, stored: StoredMatrix) -> Matrix:
        """Return the kind of a stored matrix."""
        return cls(stored.packing, tuple(Part(stack.shape, stack.read_as) for stack in stored.parts))

    def stack(self, arrays: Sequence[mx.array]) -> ExpertMatrix:
        """Return the stack that arrays [slots, ...] of the parts are."""
        if self.packing is None:
            return arrays[0]
        packing = self.packing
        if packing.mode in FLOAT_MODES:
            global_scale = arrays[2] if len(arrays) > 2 else None
            return FloatMatrix(
                arrays[0], arrays[1], packing.group_size, packing.bits, packing.mode, global_scale=global_scale
            )
        return QuantizedMatrix(arrays[0], arrays[1], arrays[2], packing.group_size, packing.bits)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What an expert is.

    Attributes:
        matrices: gate, up and down.
        num_experts: of a layer.
    """

    matrices: tuple[Matrix, Matrix, Matrix]
    num_experts: int

    @classmethod
    def of(cls, stored: StoredExperts) -> Geometry:
        """Return what the experts of a layer are.

        Raises:
            CheckpointRejected: they are computed with in a dtype that no reader makes of the stored one.
        """
        for stack in stored.parts:
            conversion_of(stack)
        gate, up, down = Matrix.of(stored.gate), Matrix.of(stored.up), Matrix.of(stored.down)
        return cls((gate, up, down), stored.shape.num_experts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of all matrices."""
        return tuple(part for matrix in self.matrices for part in matrix.parts)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return sum(part.nbytes for part in self.parts)

    def slots_bytes(self, num_slots: int) -> int:
        """Return the bytes that so many slots take: of each part whole pages, and one in front."""
        page = mmap.PAGESIZE
        return sum(page + -(-num_slots * part.nbytes // page) * page for part in self.parts)

    def most_slots(self, budget_bytes: int) -> int:
        """Return how many slots take no more than so many bytes."""
        most = max(0, budget_bytes // self.expert_bytes)
        while most and self.slots_bytes(most) > budget_bytes:
            most -= 1
        return most

    def stacks(self, arrays: Sequence[mx.array]) -> ExpertStacks:
        """Return the stacks that arrays [slots, ...] of all parts are."""
        matrices: list[ExpertMatrix] = []
        first = 0
        for matrix in self.matrices:
            matrices.append(matrix.stack(arrays[first : first + len(matrix.parts)]))
            first += len(matrix.parts)
        return ExpertStacks(*matrices)


def conversion_of(stack: StoredStack) -> Conversion:
    """Return what becomes of stored numbers as they are read.

    Raises:
        CheckpointRejected: there is no such conversion.
    """
    if not stack.is_readable:
        problem = f"is of {stack.dtype} and computed with as {stack.read_as}, which slabs are not filled with"
        raise CheckpointRejected(problem, file=stack.places[0].file.name, key=stack.name)
    return "none" if stack.dtype == stack.read_as else _CONVERSIONS[stack.dtype]
