"""Tensors that lie in a file as plain numbers, as arrays: of files that MLX does not read itself."""

from __future__ import annotations

import mlx.core as mx

from models.checkpoint.integers import read_integers
from models.checkpoint.raw_numbers import read_raw_numbers
from models.checkpoint.tensors import TensorInfo


def read_raw_array(info: TensorInfo) -> mx.array:
    """Read the numbers of a tensor in its stored shape and dtype.

    Raises:
        CheckpointCorrupt: the file is shorter than its header says, or cannot be read.
    """
    if info.integers is not None:
        return mx.array(read_integers(info, info.integers))
    array = mx.array(read_raw_numbers(info))
    return array.view(mx.bfloat16) if info.dtype == "BF16" else array
