"""Tensors that lie in a file as plain numbers, as arrays: of files that MLX does not read itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy.typing as npt

from models.checkpoint.integers import read_integers
from models.checkpoint.raw_numbers import read_raw_numbers
from models.checkpoint.tensors import TensorInfo

# By the words of safetensors.
MLX_DTYPES: Mapping[str, mx.Dtype] = {
    "U8": mx.uint8,
    "U16": mx.uint16,
    "U32": mx.uint32,
    "I8": mx.int8,
    "I16": mx.int16,
    "I32": mx.int32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "F32": mx.float32,
}


def read_raw_array(info: TensorInfo) -> mx.array:
    """Read the numbers of a tensor in its stored shape and dtype.

    Raises:
        CheckpointCorrupt: the file is shorter than its header says, or cannot be read.
    """
    if info.integers is not None:
        return mx.array(read_integers(info, info.integers))
    return array_of(read_raw_numbers(info), are_bits=info.dtype == "BF16")


def array_of(numbers: npt.NDArray[Any], *, are_bits: bool) -> mx.array:
    """Return numbers as an array; where they are bits, uint16, of bfloat16."""
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if are_bits else array
