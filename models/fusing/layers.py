"""The weights of one layer with an adapter in them, as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from models.adapters.adapter import LayerNumbers
from models.checkpoint.quantization import LayerQuantization
from models.checkpoint.raw_arrays import MLX_DTYPES, array_of, read_raw_array
from models.checkpoint.tensors import TensorInfo
from models.fusing.plan import FusedLayer


def fused_parts(layer: FusedLayer, numbers: LayerNumbers) -> Mapping[str, npt.NDArray[Any]]:
    """Return the tensors of a layer with the adapter in them, by their parts; of bfloat16 the bits, as uint16.

    The sum W + scale * (A B)^T is made in float32.

    Raises:
        CheckpointCorrupt: the weights cannot be read.
    """
    arrays = {part: read_raw_array(info) for part, info in layer.parts.items()}
    stored = zip((numbers.a, numbers.b), numbers.is_bfloat16, strict=True)
    a, b = (array_of(x, are_bits=are_bits).astype(mx.float32) for x, are_bits in stored)
    added = b @ a if numbers.is_transposed else mx.transpose(a @ b)  # [outputs, inputs]
    weight = (_unpacked(layer, arrays) + numbers.scale * added).astype(MLX_DTYPES[layer.dtype])
    if not layer.is_packed_again or layer.packing is None:
        return {"weight": _numbers(weight)}
    codes, scales, biases = mx.quantize(weight, layer.packing.group_size, layer.packing.bits)
    made = {"weight": codes, "scales": scales, "biases": biases}
    return {part: _numbers(_as_stored(array, layer.parts[part])) for part, array in made.items()}


def _unpacked(layer: FusedLayer, arrays: Mapping[str, mx.array]) -> mx.array:
    """Return the layer's own weights, float32 [outputs, inputs]."""
    packing = layer.packing
    if packing is None:
        return arrays["weight"].astype(mx.float32)
    if packing.has_biases:
        scales, biases = arrays["scales"].astype(mx.float32), arrays["biases"].astype(mx.float32)
        return mx.dequantize(arrays["weight"], scales, biases, packing.group_size, packing.bits)
    return _floats(packing, arrays)


def _floats(packing: LayerQuantization, arrays: Mapping[str, mx.array]) -> mx.array:
    global_scale = arrays.get("global_scale")
    return mx.dequantize(
        arrays["weight"],
        arrays["scales"],
        group_size=packing.group_size,
        bits=packing.bits,
        mode=packing.mode,
        global_scale=None if global_scale is None else mx.reshape(global_scale.astype(mx.float32), ()),
        dtype=mx.float32,
    )


def _as_stored(array: mx.array, info: TensorInfo) -> mx.array:
    return array.astype(MLX_DTYPES[info.dtype]) if info.dtype in MLX_DTYPES else array


def _numbers(array: mx.array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)  # pyright: ignore[reportUnknownVariableType]
    return numbers
