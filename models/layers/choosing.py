"""What a model computes with, made once when it is loaded: as `models.checkpoint.sizes.Computation` says it."""

from __future__ import annotations

import mlx.core as mx

from models.checkpoint.raw_arrays import MLX_DTYPES
from models.checkpoint.sizes import Computation
from models.layers.arithmetic import Arithmetic
from models.layers.mlx_arithmetic import MlxArithmetic, MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic


def arithmetic_of(computation: Computation) -> Arithmetic:
    """Return the operations that layers are built with."""
    if computation.has_kernels:
        return NativeArithmetic()
    if computation.is_reference or computation.device != "cpu":
        return MlxArithmetic(in_chunks=not computation.is_reference)
    return MlxCpuArithmetic()


def dtype_of(computation: Computation) -> mx.Dtype:
    """Return the dtype of hidden states."""
    return MLX_DTYPES[computation.dtype]
