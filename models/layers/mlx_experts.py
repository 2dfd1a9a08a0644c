"""Products of tokens with the matrices of the experts that were chosen for them, by MLX's own operations."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from models.layers.arithmetic import ExpertsProduct
from models.layers.expert_stacks import ExpertMatrix, ExpertStacks
from models.layers.quantized import LARGEST_OF_CODES, FloatMatrix, QuantizedMatrix

# From so many pairs of a token and an expert on, those of one expert are brought together: as mlx-lm has it.
_SORTED_PAIRS = 64

# Rows [..., 1, columns], the expert of each, and whether these are in order, to [..., 1, rows of a matrix].
GatheredProduct = Callable[[mx.array, mx.array, bool], mx.array]


def expert_products(stacks: ExpertStacks, join: Callable[[mx.array, mx.array], mx.array]) -> ExpertsProduct:
    """Return the gated feed-forward parts of experts, in the shapes of mlx-lm.

    Args:
        stacks: the matrices.
        join: makes one of the products with `gate` and with `up`.
    """
    gate, up, down = (gathered_product(matrix) for matrix in (stacks.gate, stacks.up, stacks.down))

    def apply(x: mx.array, indices: mx.array, is_sorted: bool) -> mx.array:
        return down(join(gate(x, indices, is_sorted), up(x, indices, is_sorted)), indices, is_sorted)

    def answer(x: mx.array, indices: mx.array) -> mx.array:
        rows = mx.expand_dims(x, (-2, -3))  # [1, N, E] -> [1, N, 1, 1, E]
        if indices.size < _SORTED_PAIRS:
            return mx.squeeze(apply(rows, indices, False), -2)
        flat = mx.flatten(indices)
        order = mx.argsort(flat)
        rows = mx.flatten(rows, 0, -3)[order // indices.shape[-1]]  # [N * k, 1, E]
        answers = apply(rows, flat[order], True)[mx.argsort(order)]
        return mx.squeeze(mx.unflatten(answers, 0, indices.shape), -2)

    return answer


def gathered_product(matrix: ExpertMatrix) -> GatheredProduct:
    """Return what multiplies each row with the matrix of its expert."""
    if isinstance(matrix, QuantizedMatrix):
        return _packed_product(matrix)
    if isinstance(matrix, FloatMatrix):
        return _float_product(matrix)
    transposed = mx.swapaxes(matrix, -1, -2)
    return lambda x, indices, is_sorted: mx.gather_mm(x, transposed, rhs_indices=indices, sorted_indices=is_sorted)


def _packed_product(matrix: QuantizedMatrix) -> GatheredProduct:
    codes, scales, biases = matrix.parts
    return lambda x, indices, is_sorted: mx.gather_qmm(
        x,
        codes,
        scales,
        biases,
        rhs_indices=indices,
        transpose=True,
        group_size=matrix.group_size,
        bits=matrix.bits,
        sorted_indices=is_sorted,
    )


def _float_product(matrix: FloatMatrix) -> GatheredProduct:
    # MLX's operation takes scales of whole matrices on a GPU alone.
    factors = None if matrix.global_scale is None else matrix.global_scale / LARGEST_OF_CODES

    def multiply(x: mx.array, indices: mx.array, is_sorted: bool) -> mx.array:
        product = mx.gather_qmm(
            x,
            matrix.codes,
            matrix.scales,
            rhs_indices=indices,
            transpose=True,
            group_size=matrix.group_size,
            bits=matrix.bits,
            mode=matrix.mode,
            sorted_indices=is_sorted,
        )
        if factors is None:
            return product
        return (product * mx.expand_dims(factors[indices], (-1, -2))).astype(product.dtype)

    return multiply
