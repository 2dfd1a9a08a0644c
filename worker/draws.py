"""Draws of tokens by stock operations of MLX: what `native.sampling` computes, on any device.

Rows that have filters are sorted, the others are not; either way a row's token depends on that row alone.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

SHARPNESS, TOP_P, LOG_MIN_P, XTC_THRESHOLD, TOP_K, UNIFORM, NEEDS_NORMALIZER = range(7)  # columns of a choice
XTC_OFF = 0.5  # no two tokens are that probable
LEAST_EXPONENT = -87.0  # the exponential of anything lower counts as 0
BLOCK = 256  # numbers that are added up one by one; then their sums are: fewer roundings


def draw(logits: mx.array, choices: NDArray[np.float32], exempt_ids: NDArray[np.int32]) -> tuple[mx.array, mx.array]:
    """Draw a token from each row; see `native.sampling.draw`.

    Args:
        logits: float32 [M, V].
        choices: float32 [M, 7].
        exempt_ids: int32 [M, N].

    Returns:
        Tokens, uint32 [M], and normalizers, float32 [M]. Where a normalizer is not finite the token is any.
    """
    best = mx.max(logits, axis=-1, keepdims=True)
    needs_normalizer = bool(choices[:, NEEDS_NORMALIZER].any())
    normalizers = mx.logsumexp(logits, axis=-1) if needs_normalizer else mx.flatten(best)
    tokens = mx.argmax(logits, axis=-1)
    if choices[:, SHARPNESS].any():
        sharpness = column(choices, SHARPNESS)
        kept = filtered(logits - best, choices, exempt_ids)
        kept = (kept - mx.max(kept, axis=-1, keepdims=True)) * sharpness
        weights = mx.where(kept >= LEAST_EXPONENT, mx.exp(kept), 0.0)
        drawn = place(weights, column(choices, UNIFORM))
        tokens = mx.where(mx.flatten(sharpness) > 0, drawn, tokens)
    return tokens, normalizers


def top(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Find the largest logits of each row; see `native.sampling.top`."""
    ids = mx.sort(mx.argpartition(-logits, count - 1, axis=-1)[:, :count], axis=-1)  # [M, V] -> [M, count]
    values = mx.take_along_axis(logits, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)


def filtered(logits: mx.array, choices: NDArray[np.float32], exempt_ids: NDArray[np.int32]) -> mx.array:
    """Filter the rows whose choices ask for it.

    Args:
        logits: float32 [M, V], the best of a row 0.
        choices: float32 [M, 7].
        exempt_ids: int32 [M, N].

    Returns:
        float32 [M, V]: minus infinity for what was removed.
    """
    top_p = choices[:, TOP_P]
    is_filtered = (top_p > 0) & (top_p < 1) | (choices[:, TOP_K] > 0)
    is_filtered |= (choices[:, LOG_MIN_P] > -np.inf) | (choices[:, XTC_THRESHOLD] < XTC_OFF)
    rows = np.flatnonzero(is_filtered & (choices[:, SHARPNESS] > 0))
    if not len(rows):
        return logits
    if len(rows) == len(choices):
        return keep(logits, choices, exempt_ids)
    index = mx.array(rows.astype(np.int32))
    changed = mx.array(logits)
    changed[index] = keep(logits[index], choices[rows], exempt_ids[rows])
    return changed


def keep(logits: mx.array, choices: NDArray[np.float32], exempt_ids: NDArray[np.int32]) -> mx.array:
    """Apply top_p, min_p, XTC and top_k, in this order; arguments and result as of `filtered`.

    What no row asks for is left out: there it would keep all of every row.
    """
    order = mx.argsort(-logits, axis=-1)  # the most probable first
    ordered = mx.take_along_axis(logits, order, axis=-1)
    top_p, top_k = column(choices, TOP_P), column(choices, TOP_K)
    masses = mx.exp(ordered)
    cumulated = cumulate(masses)
    total = cumulated[:, -1:]
    kept = (cumulated - masses < top_p * total) | (top_p <= 0) | (top_p >= 1)
    kept = kept & (ordered >= column(choices, LOG_MIN_P))
    if (choices[:, XTC_THRESHOLD] < XTC_OFF).any():
        likely = kept & (masses > column(choices, XTC_THRESHOLD) * total)
        least_likely = mx.min(mx.where(likely, ordered, mx.inf), axis=-1, keepdims=True)
        is_exempt = mx.any(order[:, :, None] == mx.array(exempt_ids)[:, None, :], axis=-1)
        kept = kept & ((ordered <= least_likely) | is_exempt)
    if choices[:, TOP_K].any():
        kept = kept & ((mx.cumsum(kept.astype(mx.int32), axis=-1) <= top_k) | (top_k == 0))
    kept = mx.put_along_axis(mx.zeros(kept.shape, mx.bool_), order, kept, axis=-1)  # in the order of ids again
    return mx.where(kept, logits, -mx.inf)


def place(weights: mx.array, uniforms: mx.array) -> mx.array:
    """Find the first place of each row with which the sum of weights exceeds `uniforms` times their sum.

    Args:
        weights: float32 [M, V], not negative.
        uniforms: float32 [M, 1], within 0 and 1, 1 excluded.

    Returns:
        uint32 [M]. Where rounding keeps the sum from that, the last place that has a weight.
    """
    cumulated = cumulate(weights)
    is_reached = (cumulated > uniforms * cumulated[:, -1:]) & (weights > 0)
    last = weights.shape[-1] - 1 - mx.argmax(weights[:, ::-1] > 0, axis=-1)
    return mx.where(mx.any(is_reached, axis=-1), mx.argmax(is_reached, axis=-1), last).astype(mx.uint32)


def cumulate(weights: mx.array) -> mx.array:
    """Add up each row from its first element to each; float32 [M, V] in and out."""
    width = weights.shape[-1]
    blocks = mx.unflatten(mx.pad(weights, [(0, 0), (0, -width % BLOCK)]), 1, (-1, BLOCK))
    before = mx.cumsum(mx.sum(blocks, axis=-1), axis=-1, inclusive=False)
    cumulated = mx.cumsum(blocks, axis=-1) + before[:, :, None]
    return mx.flatten(cumulated, 1)[:, :width]


def column(choices: NDArray[np.float32], number: int) -> mx.array:
    """Return a column of the choices; float32 [M, 1]."""
    return mx.array(choices[:, number : number + 1])
