"""What layers of speech do to rows between products, on the CPU; as in `native.kernels`, of which this is a part."""

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


def full_attention(queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, scale: float) -> mx.array:
    """Let every query see every key: attention with the softmax of scores, in half of the time of `kernels.attention`.

    A query's bits are those of itself and of its batch's keys, whatever other queries there are; they are not those of
    `kernels.attention`, which sums scores in another order.

    Args:
        queries: float32 [batches, queries, heads * width], in which the elements of a row lie side by side.
        keys: float32 [batches, keys, heads * width], the same.
        values: as `keys`.
        num_heads: into which a row is cut.
        scale: of the scores.

    Returns:
        float32 of the shape of `queries`.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.
    """
    return _extension().full_attention(queries, keys, values, num_heads, scale)


def head_attention(
    queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, scale: float, *, is_causal: bool
) -> mx.array:
    """Let queries see keys, where the heads of a row lie side by side: the bits of `kernels.attention`.

    Args:
        queries: as in `full_attention`, and so are the others.
        keys: see there.
        values: see there.
        num_heads: see there.
        scale: of the scores.
        is_causal: whether the last query stands at the last key, and no query sees what comes after it.

    Returns:
        float32 of the shape of `queries`.

    Raises:
        OperandRejected, NativeError: as `full_attention`.
    """
    return _extension().head_attention(queries, keys, values, num_heads, scale, is_causal)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
