"""What is known of a stored tensor before its bytes are read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from models.checkpoint.identity import FileIdentity


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a header: its dtype in safetensors' words, shape, absolute offset in bytes and length in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class IntegerPart(Enum):
    """What a tensor is of a matrix that is stored as whole numbers, see `models.checkpoint.integers`."""

    WEIGHTS = "weights"  # F32
    CODES = "codes"  # U32, as MLX packs 8 bits
    STEPS = "steps"  # F32, for each group of codes
    BIASES = "biases"  # F32, the same


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """A matrix of whole numbers, whose weights are these divided by scales.

    Attributes:
        part: what the tensor is of it.
        dtype: of the numbers, I8 or I16.
        shape: of the numbers in the file.
        scales_offset: bytes from the start of the file to the scales, of F32.
        num_scales: one for each row of `shape`, or one.
    """

    part: IntegerPart
    dtype: str
    shape: tuple[int, ...]
    scales_offset: int
    num_scales: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the weights reader gives it.

    A block-quantized GGUF tensor stands here as the three that MLX makes of it: `….weight` (U32), `….scales`
    and `….biases` (F16), all with the offset of the blocks.

    Attributes:
        name: canonical name, the one that a Llama of Hugging Face has (`model.layers.0.self_attn.q_proj.weight`).
        stored_name: the name under which `mx.load(file)` gives it.
        file: the file that holds it.
        dtype: safetensors word: F32, F16, BF16, U32, U8, ...
        shape: outermost dimension first.
        offset: bytes from the start of the file to the first of the tensor's.
        nbytes: bytes of the array in memory.
        permuted_heads: 0, or the number of heads whose rows GGUF keeps interleaved: row i of the true tensor is
            stored row `gguf_llama.unpermuted_rows(shape[0], permuted_heads)[i]`.
        stored_type: GGUF's word for the stored tensor that this is, or is a part of (Q4_1, F32, ...); empty elsewhere.
        axes: where the stored axes go: axis i of the true tensor is the stored axis `axes[i]`; empty: as stored.
        is_raw: whether the file is one that MLX does not read, with the tensor's numbers as they stand at `offset`.
        integers: what whole numbers at `offset` a raw tensor is made of; None: it stands there as it is.
        identity: of the file when its header was read; None: nobody noted it.
    """

    name: str
    stored_name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    permuted_heads: int = 0
    stored_type: str = ""
    axes: tuple[int, ...] = ()
    is_raw: bool = False
    integers: IntegerRows | None = None
    identity: FileIdentity | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the file."""
        if not self.axes:
            return self.shape
        return tuple(self.shape[self.axes.index(axis)] for axis in range(len(self.shape)))
