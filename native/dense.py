"""Products with weights that are not packed, on the CPU, read as they are stored.

As in `native.kernels`, an array is computed when it is evaluated, and what a row gives depends on that row alone: it
has the same bits whatever rows it comes with, and with any number of threads. The weights' values become float32 as
they are read, without rounding.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import mlx.core as mx


def linear(x: mx.array, weight: mx.array, *, addend: mx.array | None = None) -> mx.array:
    """Multiply `x` with a transposed matrix.

    Products are summed in float32; the result is within 1e-5 of the exact one, measured against the sum of the
    products without their signs.

    Args:
        x: float32 [..., columns], any layout.
        weight: float32, bfloat16 or float16 [rows, columns], row-contiguous.
        addend: float32 [..., rows], any layout, added to the product: the bits of a sum of both, in less time.

    Returns:
        float32 [..., rows].

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().linear(x, weight, addend)


def linears(x: mx.array, weights: Sequence[mx.array]) -> list[mx.array]:
    """Multiply `x` with several transposed matrices at once: the bits of `linear`, in less time.

    Args:
        x: float32 [..., columns], any layout.
        weights: as in `linear`, each of a dtype of its own; all have as many columns as `x`.

    Returns:
        For each matrix, float32 [..., its rows].

    Raises:
        OperandRejected, NativeError: as `linear`.
    """
    return _extension().linears(x, weights)


def linear_swiglu(x: mx.array, gate: mx.array, up: mx.array) -> mx.array:
    """Multiply `x` with two transposed matrices and join the products: the bits of `linear` and `kernels.swiglu`.

    Args:
        x: float32 [..., columns], any layout.
        gate: the matrix whose product is gated, as in `linear`.
        up: the other, of the same shape.

    Returns:
        float32 [..., rows].

    Raises:
        OperandRejected, NativeError: as `linear`.
    """
    return _extension().linear_swiglu(x, gate, up)


def rows(weight: mx.array, indices: mx.array) -> mx.array:
    """Look up rows of a matrix, as an embedding does, without converting the rest.

    Args:
        weight: float32, bfloat16 or float16 [rows, columns], row-contiguous.
        indices: integers [...], each at least 0 and less than the number of rows.

    Returns:
        float32 [*indices, columns]; no numbers, and a failure that `kernels.take_failure` tells, where there is no row
        of an index.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().rows(weight, indices)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
