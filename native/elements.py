"""What an encoder does to rows between its products, on the CPU; as in `native.kernels`, of which this is a part."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from types import ModuleType

    import mlx.core as mx


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, epsilon: float) -> mx.array:
    """Normalize rows to mean 0 and variance 1: (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias.

    Args:
        x: float32 [..., width], any layout.
        weight: float32 [width], row-contiguous.
        bias: the same.
        epsilon: added to the variance.

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """
    return _extension().layer_norm(x, weight, bias, epsilon)


def gelu(x: mx.array) -> mx.array:
    """Weigh each number by the normal distribution function of it: x * (1 + erf(x / sqrt(2))) / 2.

    The function is within 1e-7 of the exact one.

    Args:
        x: float32 [..., width], any layout.

    Returns:
        float32 of the shape of `x`.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    return _extension().gelu(x)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
