"""What a mixture of experts is made of, on the CPU, beside `native.kernels.gather_quantized_linear`.

As in `native.kernels`, an array is computed when it is evaluated, and what a row gives depends on that row alone: it
has the same bits whatever rows it comes with, and with any number of threads. Rows that have chosen the same matrix are
multiplied together.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from types import ModuleType
    from typing import TypeAlias

    import mlx.core as mx

    Matrices: TypeAlias = tuple[mx.array, mx.array, mx.array]


def choose_experts(
    logits: mx.array, num_chosen: int, *, is_of_all: bool, scale: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Choose the experts of each row's largest logits, the largest first; of equals the one with the lower number.

    Args:
        logits: float32 [..., experts], any layout; what is no number counts as less than any number.
        num_chosen: 1 to the number of experts.
        is_of_all: whether an expert's share is its probability among all, instead of among the chosen.
        scale: float32 [experts], row-contiguous, multiplies the share of each expert.

    Returns:
        Their numbers, int32 [..., num_chosen], and their shares, float32 of that shape.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().choose_experts(logits, num_chosen, is_of_all, scale)


def mix(answers: mx.array, shares: mx.array) -> mx.array:
    """Sum the answers of each row's experts by their shares, from the first to the last.

    Args:
        answers: float32 [..., chosen, width], any layout.
        shares: float32 [..., chosen], any layout.

    Returns:
        float32 [..., width].

    Raises:
        OperandRejected, NativeError: as `choose_experts`.
    """
    return _extension().mix(answers, shares)


def sigmoid_gate(x: mx.array, gate: mx.array) -> mx.array:
    """Multiply with the sigmoid of a gate: x / (1 + exp(-gate)).

    Args:
        x: float32 [..., width], any layout.
        gate: float32 of the shape of `x`, or [..., 1]: one for each row.

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected, NativeError: as `choose_experts`.
    """
    return _extension().sigmoid_gate(x, gate)


def gather_linear(x: mx.array, weights: mx.array, choices: mx.array) -> mx.array:
    """Multiply each row of `x` with the one of several transposed matrices that it has chosen.

    Args:
        x: float32, any layout: [*choices, columns], a row for each choice, or [*choices without the last, columns],
            a row for each list of choices.
        weights: float32, bfloat16 or float16 [matrices, rows, columns], row-contiguous.
        choices: integers [...], each at least 0 and less than the number of matrices.

    Returns:
        float32 [*choices, rows]: the bits that `native.dense.linear` gives each row; no numbers, and a failure that
        `native.kernels.take_failure` tells, where there is no matrix of a choice.

    Raises:
        OperandRejected, NativeError: as `choose_experts`.
    """
    return _extension().gather_linear(x, weights, choices)


def gather_gated(x: mx.array, gate: mx.array, up: mx.array, choices: mx.array, *, is_gelu: bool) -> mx.array:
    """Do so with two matrices for each choice, and join the products: the bits of `gather_linear` and a gate.

    Args:
        x: as in `gather_linear`.
        gate: as the weights in `gather_linear`.
        up: the same, of the same shape.
        choices: as in `gather_linear`.
        is_gelu: whether `native.blend.geglu` joins them, instead of `native.kernels.swiglu`.

    Returns:
        float32 [*choices, rows].

    Raises:
        OperandRejected, NativeError: as `choose_experts`.
    """
    return _extension().gather_gated(x, gate, up, choices, is_gelu)


def gather_quantized_gated(  # noqa: PLR0913 - as `gather_gated`, and how the matrices are packed
    x: mx.array, gate: Matrices, up: Matrices, choices: mx.array, *, group_size: int, bits: int, is_gelu: bool
) -> mx.array:
    """Do so with matrices that are packed alike: the bits of `gather_quantized_linear` and a gate.

    Args:
        x: as in `gather_linear`.
        gate: codes, scales and biases, as in `native.kernels.gather_quantized_linear`.
        up: the same, of the same shape.
        choices: as in `gather_linear`.
        group_size: one of `native.kernels.GROUP_SIZES`.
        bits: one of `native.kernels.BITS`.
        is_gelu: as in `gather_gated`.

    Returns:
        float32 [*choices, rows].

    Raises:
        QuantizationUnsupported: there is no kernel for these codes or groups.
        OperandRejected, NativeError: as `choose_experts`.
    """
    return _extension().gather_quantized_gated(x, gate, up, choices, group_size, bits, is_gelu)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
