"""Products of tokens with the matrices of the experts that were chosen for them, by kernels of our own."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from models.layers.arithmetic import Activation, ExpertsProduct
from models.layers.expert_stacks import ExpertMatrix, ExpertStacks
from models.layers.mlx_experts import gathered_product
from models.layers.quantized import FloatMatrix, QuantizedMatrix
from native import blend, experts, kernels

# Tokens [..., E] and choices [..., k], or rows [..., k, I] and the same, to [..., k, rows of a matrix].
_Product = Callable[[mx.array, mx.array], mx.array]


def expert_products(stacks: ExpertStacks, activation: Activation) -> ExpertsProduct:
    """Return the gated feed-forward parts of experts, in two jobs where gate and up are stored alike."""
    gated, down = _gated(stacks.gate, stacks.up, activation), _product(stacks.down)
    return lambda x, indices: down(gated(x, indices), indices)


def _gated(gate: ExpertMatrix, up: ExpertMatrix, activation: Activation) -> _Product:
    is_gelu = activation == "gelu"
    if isinstance(gate, mx.array) and isinstance(up, mx.array) and gate.dtype == up.dtype:
        return lambda x, indices: experts.gather_gated(x, gate, up, indices, is_gelu=is_gelu)
    if isinstance(gate, QuantizedMatrix) and isinstance(up, QuantizedMatrix):
        form = gate.group_size, gate.bits
        if form == (up.group_size, up.bits):
            gates, ups = gate.parts, up.parts
            return lambda x, indices: experts.gather_quantized_gated(
                x, gates, ups, indices, group_size=form[0], bits=form[1], is_gelu=is_gelu
            )
    gate_product, up_product = _product(gate), _product(up)
    join = blend.geglu if is_gelu else kernels.swiglu
    return lambda x, indices: join(gate_product(x, indices), up_product(x, indices))


def _product(matrix: ExpertMatrix) -> _Product:
    if isinstance(matrix, FloatMatrix):
        return _float_product(matrix)
    if isinstance(matrix, mx.array):
        return lambda x, indices: experts.gather_linear(x, matrix, indices)
    codes, scales, biases = matrix.parts
    return lambda x, indices: kernels.gather_quantized_linear(
        x, codes, scales, biases, indices, group_size=matrix.group_size, bits=matrix.bits
    )


def _float_product(matrix: FloatMatrix) -> _Product:
    # MLX's operation, a row at a time: each has the bits that it has alone.
    product = gathered_product(matrix)

    def multiply(x: mx.array, indices: mx.array) -> mx.array:
        rows = mx.expand_dims(x, (-2, -3) if x.ndim == indices.ndim else -2)  # [..., 1, 1, E] or [..., k, 1, I]
        return mx.squeeze(product(rows, indices, False), -2)

    return multiply
