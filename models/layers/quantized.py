"""Weights kept packed: a few bits each, with a scale and a bias for every group of them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix in MLX's affine format: within a group, value = scale * code + bias.

    Attributes:
        codes: uint32 [rows, columns * bits / 32], the first code in the lowest bits.
        scales: floating [rows, columns / group_size].
        biases: the same.
        group_size: columns that share a scale.
        bits: bits a code.
    """

    codes: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int

    @property
    def parts(self) -> tuple[mx.array, mx.array, mx.array]:
        """Codes, scales and biases."""
        return self.codes, self.scales, self.biases
