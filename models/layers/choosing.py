"""What a model computes with, made once when it is loaded: as `models.checkpoint.sizes.Computation` says it."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from models.checkpoint.sizes import Computation
from models.layers.arithmetic import Arithmetic
from models.layers.mlx_arithmetic import MlxArithmetic, MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic

_DTYPES: Mapping[str, mx.Dtype] = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}


def arithmetic_of(computation: Computation) -> Arithmetic:
    """Return the operations that layers are built with."""
    if computation.has_kernels:
        return NativeArithmetic()
    if computation.is_reference or computation.device != "cpu":
        return MlxArithmetic(in_chunks=not computation.is_reference)
    return MlxCpuArithmetic()


def dtype_of(computation: Computation) -> mx.Dtype:
    """Return the dtype of hidden states."""
    return _DTYPES[computation.dtype]
