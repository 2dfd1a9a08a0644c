"""Normalization by the root of the mean square.

Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

from __future__ import annotations

import mlx.core as mx

from models.layers.arithmetic import Arithmetic


class RMSNorm:
    """Scales each run of E elements to root mean square 1, then by `weight` [E]: a position, or each of its heads."""

    def __init__(self, weight: mx.array, eps: float, arithmetic: Arithmetic) -> None:
        self._weight = weight
        self._eps = eps
        self._arithmetic = arithmetic

    def __call__(self, x: mx.array) -> mx.array:
        """Normalize the runs of the last axis of `x`."""
        return self._arithmetic.rms_norm(x, self._weight, self._eps)


class GatedRMSNorm:
    """The same, times a silu of a gate: what linear attention does to each of its heads."""

    def __init__(self, weight: mx.array, eps: float, arithmetic: Arithmetic) -> None:
        self._weight = weight
        self._eps = eps
        self._arithmetic = arithmetic

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """Normalize the runs of the last axis of `x`, and gate them by an array of its shape."""
        return self._arithmetic.gated_norm(x, gate, self._weight, self._eps)
