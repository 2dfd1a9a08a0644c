"""Weights kept packed: a few bits each, with a scale, and in one of the formats a bias, for every group of them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

# The largest of the floats of 8 bits (e4m3) by the largest of those of 4 (e2m1): what a global scale stands for.
LARGEST_OF_CODES = 448 * 6


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


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix in one of the formats.

    Attributes:
        codes: uint32 [rows, columns * bits / 32], the first code in the lowest bits.
        scales: uint8 [rows, columns / group_size].
        group_size: columns that share a scale.
        bits: bits a code.
        mode: MLX's word for the format.
        global_scale: float32 []: the largest magnitude of the matrix, which stands for the largest that codes and
            scales together can say; only of `nvfp4`, None where they say the weights themselves.
    """

    codes: mx.array
    scales: mx.array
    group_size: int
    bits: int
    mode: str
    global_scale: mx.array | None = None
