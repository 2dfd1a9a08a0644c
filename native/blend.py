"""What some layers do element by element, on the CPU.

As in `native.kernels`, an array is computed when it is evaluated, and what a row gives depends on that row alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from types import ModuleType

    import mlx.core as mx


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """Join the halves of a layer that is gated by a gelu, the one that is made of a tanh.

    gelu(g) = g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))) / 2.

    Args:
        gate: float32 [..., width], any layout.
        up: the same.

    Returns:
        gelu(gate) * up; float32 of that shape.

    Raises:
        OperandRejected: an array does not fit the other.
        NativeError: the extension is not there or cannot be imported.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; gates: Shazeer 2020, arXiv:2002.05202.
    """
    return _extension().geglu(gate, up)


def multiply(x: mx.array, factor: mx.array) -> mx.array:
    """Multiply two arrays, or each row or element of an array: the bits of MLX's product.

    Args:
        x: float32 [..., width], any layout.
        factor: float32 of the shape of `x`, [width] or [1].

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected, NativeError: as `geglu`.
    """
    return _extension().multiply(x, factor)


def columns(x: mx.array, begin: int, count: int) -> mx.array:
    """Take columns that lie next to one another.

    Args:
        x: float32 [..., width], any layout.
        begin: the first.
        count: how many.

    Returns:
        float32 [..., count].

    Raises:
        OperandRejected, NativeError: as `geglu`.
    """
    return _extension().columns(x, begin, count)


def soft_bound(x: mx.array, bound: float) -> mx.array:
    """Keep elements within a bound: bound * tanh(x / bound).

    Args:
        x: float32 [..., width], any layout.
        bound: over 0.

    Returns:
        float32 of the shape of `x`, each within 1e-6 of the bound of the exact one.

    Raises:
        OperandRejected, NativeError: as `geglu`.
    """
    return _extension().soft_bound(x, bound)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
