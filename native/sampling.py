"""Draws of tokens on the CPU: all rows of a step at once, each by its own rule.

As in `native.kernels`, an array is computed when it is evaluated, and a row's token depends on that row alone: on its
logits and its rule, not on other rows nor on the number of threads.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from types import ModuleType

    import mlx.core as mx


def draw(logits: mx.array, choices: mx.array, exempt_ids: mx.array) -> tuple[mx.array, mx.array]:
    """Draw a token from each row, with a probability proportional to exp(logit / temperature) among those kept.

    The token is the first, in the order of ids, with which the sum of these weights exceeds `uniform` times their sum.
    Filters run in the order of their columns. Of equally probable tokens the one of the smaller id stands first.

    Args:
        logits: float32 [M, V], the elements of a row side by side.
        choices: float32 [M, 7], row-contiguous; the columns are
            1 / temperature (0: the most probable token, before any filter),
            top_p (keeps those before which less mass stands; active within 0 and 1),
            the logarithm of min_p (minus infinity keeps all),
            the threshold of XTC (of those with a higher probability, all but the least probable are removed; none at
            0.5 and above),
            top_k (0 keeps all),
            the uniform number of the draw (within 0 and 1, 1 excluded),
            and whether the normalizer is needed (0: only whether it is finite).
        exempt_ids: int32 [M, N], row-contiguous: XTC never removes these; a negative number stands for none.

    Returns:
        Tokens, uint32 [M]; and normalizers, float32 [M]: the logarithm of the sum of the exponentials of the logits, or
        the largest logit where that is not needed. It is not finite where a logit is no number or infinite, or all are
        minus infinity; the token is 0 there.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: top_p: Holtzman et al. 2019, arXiv:1904.09751; min_p: Nguyen et al. 2024, arXiv:2407.01082.
    """
    return _extension().draw(logits, choices, exempt_ids)


def top(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Find the largest logits of each row, the largest first, and of equals the one of the smaller id.

    Args:
        logits: float32 [M, V], the elements of a row side by side.
        count: from 1 to V.

    Returns:
        Token ids, uint32 [M, count]; and their logits, float32 [M, count]. Where a logit of the row is no number they
        are of no use.

    Raises:
        OperandRejected, NativeError: as `draw`.
    """
    return _extension().top(logits, count)


def restrict(logits: mx.array, masks: mx.array) -> mx.array:
    """Make minus infinity of the logits that masks forbid.

    Args:
        logits: float32 [M, V], the elements of a row side by side.
        masks: uint32 [M, W], row-contiguous: bit i % 32 of word i // 32 allows token i; none behind them is allowed.

    Returns:
        float32 [M, V].

    Raises:
        OperandRejected, NativeError: as `draw`.
    """
    return _extension().restrict(logits, masks)


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
