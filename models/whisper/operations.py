"""What Whisper computes between its products: one choice, made when the model is loaded.

Operations
├── ReferenceOperations    mlx-whisper's own, bit for bit
├── FusedOperations        MLX's fused ones: the fast path on a GPU, and on a CPU without native kernels
└── NativeOperations       kernels of our own: the fast path on the CPU; a row's bits depend on that row alone
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from models.layers.attention import attend, join_heads, split_heads
from native import dense, elements, kernels

LAYER_NORM_EPS = 1e-5


class Operations(Protocol):
    """None of them waits for the device."""

    def layer_norm(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        """Bring the last axis to mean 0 and variance 1. Source: Ba et al. 2016, arXiv:1607.06450."""
        ...

    def gelu(self, x: mx.array) -> mx.array:
        """Return x * Phi(x), exactly and not by tanh. Source: Hendrycks and Gimpel 2016, arXiv:1606.08415."""
        ...

    def convolve(self, x: mx.array, weight: mx.array, bias: mx.array, stride: int) -> mx.array:
        """Return [B, F / stride, outputs] of x [B, F, inputs], weight [outputs, 3, inputs] and bias [outputs]."""
        ...

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, *, causal: bool) -> mx.array:
        """Let queries look at keys and values.

        Args:
            queries: [B, T, E].
            keys: [B, L, E], or [1, L, E] for all rows alike where it is not causal.
            values: the same.
            num_heads: H.
            causal: the last query stands at the last key, and none sees a key behind its own place.

        Returns:
            [B, T, E].
        """
        ...

    def look_around(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int) -> mx.array:
        """Let every position of an encoder look at all others: [B, C, E] of three [B, C, E]."""
        ...


class _MlxOperations:
    """What MLX computes on either path; `attend` is the path's own.

    Args:
        compiles: whether to use `mx.compile`, which on a CPU calls a C++ compiler at run time.
    """

    def __init__(self, *, compiles: bool) -> None:
        # Compiled it is one kernel, as MLX's `nn.gelu` is, and rounds otherwise than separate operations.
        self._gelu: Callable[[mx.array], mx.array] = (
            mx.compile(_exact_gelu, shapeless=True) if compiles else _exact_gelu
        )

    def layer_norm(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        """Bring the last axis to mean 0 and variance 1."""
        return mx.fast.layer_norm(x, weight, bias, LAYER_NORM_EPS)

    def gelu(self, x: mx.array) -> mx.array:
        """Return x * Phi(x)."""
        return self._gelu(x)

    def convolve(self, x: mx.array, weight: mx.array, bias: mx.array, stride: int) -> mx.array:
        """Return [B, F / stride, outputs]."""
        return mx.conv1d(x, weight, stride=stride, padding=1) + bias


class ReferenceOperations(_MlxOperations):
    """mlx-whisper's operations in its order: queries and keys scaled apart, a mask added, a precise softmax."""

    def __init__(self) -> None:
        super().__init__(compiles=True)

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, *, causal: bool) -> mx.array:
        """Return [B, T, E]."""
        scores = attention_scores(queries, keys, num_heads)
        if causal and queries.shape[1] > 1:
            scores = scores + _causal_mask(queries.shape[1], keys.shape[1]).astype(scores.dtype)
        weights = mx.softmax(scores, axis=-1, precise=True)
        heads = mx.swapaxes(mx.unflatten(values, -1, (num_heads, -1)), 1, 2)  # [B, L, E] -> [B, H, L, D]
        return join_heads(weights @ heads)

    def look_around(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int) -> mx.array:
        """Return [B, C, E]."""
        return self.attend(queries, keys, values, num_heads, causal=False)


class FusedOperations(_MlxOperations):
    """MLX's fused operations; made as `_MlxOperations`."""

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, *, causal: bool) -> mx.array:
        """Return [B, T, E]."""
        queries, shape = _folded(queries, keys, causal=causal)
        q, k, v = (split_heads(x, num_heads) for x in (queries, keys, values))  # [B, T, E] -> [B, H, T, D]
        scale = q.shape[-1] ** -0.5
        mixed = attend(q, k, v, scale) if causal else mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)
        return mx.reshape(join_heads(mixed), shape)

    def look_around(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int) -> mx.array:
        """Return [B, C, E]."""
        return self.attend(queries, keys, values, num_heads, causal=False)


class NativeOperations:
    """Kernels of our own, in float32."""

    def layer_norm(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        """Bring the last axis to mean 0 and variance 1."""
        return elements.layer_norm(x, weight, bias, LAYER_NORM_EPS)

    def gelu(self, x: mx.array) -> mx.array:
        """Return x * Phi(x), Phi within 1e-7."""
        return elements.gelu(x)

    def convolve(self, x: mx.array, weight: mx.array, bias: mx.array, stride: int) -> mx.array:
        """Return [B, F / stride, outputs], as a product with what each output sees."""
        batch, num_frames, width = x.shape
        padded = mx.contiguous(mx.pad(x, [(0, 0), (1, 1), (0, 0)]))
        seen = mx.as_strided(
            padded,
            (batch, num_frames // stride, weight.shape[1] * width),
            ((num_frames + 2) * width, stride * width, 1),
        )
        return kernels.add(dense.linear(seen, mx.flatten(weight, 1)), bias)

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, *, causal: bool) -> mx.array:
        """Return [B, T, E]."""
        folded, shape = _folded(queries, keys, causal=causal)
        scale = (shape[-1] // num_heads) ** -0.5
        mixed = elements.head_attention(folded, keys, values, num_heads, scale, is_causal=causal)
        return mixed if folded is queries else mx.reshape(mixed, shape)

    def look_around(self, queries: mx.array, keys: mx.array, values: mx.array, num_heads: int) -> mx.array:
        """Return [B, C, E]; a position's bits are those of its own window."""
        return elements.full_attention(queries, keys, values, num_heads, (queries.shape[-1] // num_heads) ** -0.5)


def attention_scores(queries: mx.array, keys: mx.array, num_heads: int) -> mx.array:
    """Return how well keys [B, L, E] fit queries [B, T, E] before any mask, [B, H, T, L], each scaled by D^-0.25."""
    scale = (queries.shape[-1] // num_heads) ** -0.25
    queries = mx.swapaxes(mx.unflatten(queries, -1, (num_heads, -1)), 1, 2) * scale  # [B, H, T, D]
    keys = mx.transpose(mx.unflatten(keys, -1, (num_heads, -1)), (0, 2, 3, 1)) * scale  # [B, H, D, L]
    return queries @ keys


def _folded(queries: mx.array, keys: mx.array, *, causal: bool) -> tuple[mx.array, tuple[int, ...]]:
    """Put rows that look at the same keys into one, where no query's place matters."""
    shape = queries.shape
    if causal or keys.shape[0] == shape[0]:
        return queries, shape
    return mx.reshape(queries, (1, -1, shape[-1])), shape


def _causal_mask(num_queries: int, num_keys: int) -> mx.array:
    """Return float32 [T, L]: minus infinity where a key lies behind its query, the last query being at the last key."""
    places = mx.arange(num_keys - num_queries, num_keys)[:, None]
    return mx.where(mx.arange(num_keys)[None] > places, -mx.inf, 0.0)


def _exact_gelu(x: mx.array) -> mx.array:
    return x * (1 + mx.erf(x / math.sqrt(2))) / 2
