"""Attention over the cached keys and values, by MLX's operation.

Source: Vaswani et al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
"""

from __future__ import annotations

import mlx.core as mx

# Measured on two cores: 512 tokens of SmolLM2-135M in 1.24 s by 64, 1.25 s by 128, 1.43 s by 256 and 1.54 s whole.
_QUERY_BLOCK_TOKENS = 64


def split_heads(x: mx.array, num_heads: int) -> mx.array:
    """Return [B, T, H * D] as [B, H, T, D]."""
    batch, num_tokens, _ = x.shape
    if num_tokens == 1:
        return mx.reshape(x, (batch, num_heads, 1, -1))
    return mx.swapaxes(mx.reshape(x, (batch, num_tokens, num_heads, -1)), 1, 2)


def join_heads(x: mx.array) -> mx.array:
    """Return [B, H, T, D] as [B, T, H * D]."""
    batch, _, num_tokens, _ = x.shape
    return mx.reshape(mx.swapaxes(x, 1, 2), (batch, num_tokens, -1))


def attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float, window: int | None = None) -> mx.array:
    """Let each of the last T positions look at itself and at what came before it.

    Args:
        queries: [B, H, T, D].
        keys: [B, H_kv, L, D].
        values: [B, H_kv, L, D].
        scale: multiplies the scores.
        window: a position sees itself and so many positions less one before it; None: all of them.

    Returns:
        [B, H, T, D].
    """
    num_queries, num_keys = queries.shape[2], keys.shape[2]
    if window is not None and num_queries == 1:
        keys, values, num_keys = keys[:, :, -window:], values[:, :, -window:], min(num_keys, window)
    mask: mx.array | str | None = "causal" if num_queries > 1 else None
    if window is not None and num_keys > window:
        mask = _window_mask(num_queries, num_keys, window)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


def _window_mask(num_queries: int, num_keys: int, window: int) -> mx.array:
    """Return bool [T, L]: which keys a query sees, the last query standing at the last key."""
    keys = mx.arange(num_keys)[None]
    queries = mx.arange(num_keys - num_queries, num_keys)[:, None]
    return (keys <= queries) & (keys > queries - window)


def attend_in_parts(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Do what `attend` does where MLX has no fused kernel: skip, block by block, what a mask would throw away."""
    num_queries, num_keys = queries.shape[2], keys.shape[2]
    if num_queries == 1:
        return _attend_one(queries, keys, values, scale)
    parts: list[mx.array] = []
    for start in range(0, num_queries, _QUERY_BLOCK_TOKENS):
        stop = min(start + _QUERY_BLOCK_TOKENS, num_queries)
        seen = num_keys - num_queries + stop
        parts.append(attend(queries[:, :, start:stop], keys[:, :, :seen], values[:, :, :seen], scale))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)


def _attend_one(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Treat the query heads that share keys as rows of one product."""
    batch, num_heads, _, width = queries.shape
    grouped = mx.reshape(queries, (batch, keys.shape[1], -1, width))  # [B, H, 1, D] -> [B, H_kv, H / H_kv, D]
    mixed = mx.fast.scaled_dot_product_attention(grouped, keys, values, scale=scale, mask=None)
    return mx.reshape(mixed, (batch, num_heads, 1, width))
