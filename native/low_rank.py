"""What adapters add to the products of a layer, on the CPU.

As in `native.kernels`, an array is computed when it is evaluated, and what a row gives depends on that row and on what
it is multiplied with alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import mlx.core as mx


def add(
    x: mx.array,
    addend: mx.array,
    matrices: Sequence[tuple[mx.array, mx.array]],
    scales: Sequence[float],
    rows: Sequence[Sequence[int] | None],
) -> mx.array:
    """Add to rows of a layer's outputs what low-rank products of its inputs give: (scale * x down^T) up.

    Args:
        x: float32 [..., columns], any layout.
        addend: float32 [..., outputs], any layout, of as many rows as `x`.
        matrices: of each product down [rank, columns] and up [rank, outputs], float32, bfloat16 or float16,
            row-contiguous; each product has a rank of its own.
        scales: of each product.
        rows: of each product, the numbers of the rows that it is for, None for every row; no row may have two.

    Returns:
        float32 of the shape of `addend`: rows without a product are those of `addend`.

    Raises:
        OperandRejected: an array does not fit the others, or a row is not there or named twice; the layout of an array
            may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """
    return _extension().add_low_rank(x, addend, matrices, scales, rows)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
