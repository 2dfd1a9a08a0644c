"""Layers that keep a state instead of keys and values, on the CPU; as in `native.kernels`, of which this is a part."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import TypeAlias

    import mlx.core as mx

    State: TypeAlias = tuple[mx.array, mx.array]


def gated_delta(
    inputs: tuple[mx.array, mx.array, mx.array],
    convolution: mx.array,
    decay: tuple[mx.array, mx.array],
    states: Sequence[State],
    pieces: Sequence[Sequence[int]],
) -> tuple[mx.array, list[list[State]]]:
    """Go through the tokens of some rows by the gated delta rule, all in one operation.

    Queries, keys and values are convolved with those of the last tokens and go through a silu; queries and keys get the
    length 1, and queries are divided by the root of their width. At each token a head's memory forgets, takes in what
    the value has beyond what the key finds in it, and is read by the query. What a token gives, and the states, have
    the same bits however the tokens before it are cut into calls and pieces, and whatever rows come with them.

    Args:
        inputs: float32, row-contiguous: queries, keys and values side by side [1, N, C], what decays [1, N, H_v] and
            what corrects [1, N, H_v].
        convolution: float32 [K, C], row-contiguous: the weights of K tokens, the last one's last.
        decay: float32 [H_v] both, row-contiguous: a head forgets by exp(-rate * softplus(x + bias)) of its rate and
            bias.
        states: before the first token of each row, row-contiguous: float32 [1, K - 1, C] of the tokens before it and
            the memory, float32 [1, H_v, D_v, D_k]; C is twice the width of H_k heads of keys, H_k a divisor of H_v, and
            H_v * D_v.
        pieces: of each row: how many tokens come before each state that is wanted, all over 0.

    Returns:
        float32 [1, N, H_v * D_v], and the states of each row after each piece.

    Raises:
        OperandRejected: an array does not fit the others; its layout may be found wrong only when it is evaluated.
        NativeError: the extension is not there or cannot be imported.

    Source: Yang et al. 2024, arXiv:2412.06464.
    """
    y, *flat = _extension().gated_delta(*inputs, convolution, *decay, list(states), [list(row) for row in pieces])
    arrays = iter(flat)
    return y, [[(next(arrays), next(arrays)) for _ in row] for row in pieces]


@functools.cache
def _extension() -> ModuleType:
    return native.extension()
