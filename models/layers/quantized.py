"""Weights kept packed: a few bits each, with a scale and a bias for every group of them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix in MLX's affine format: within a group, value = scale * code + bias.

    Attributes:
        codes: uint32 [rows, columns * bits / 32], the first code in the lowest bits.
        scales: compute dtype [rows, columns / group_size].
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
    def num_rows(self) -> int:
        """Rows of the matrix: outputs of a linear layer, tokens of an embedding."""
        return self.codes.shape[0]

    def multiply(self, x: mx.array) -> mx.array:
        """Return `x` [..., columns] times the transposed matrix, [..., rows]."""
        return mx.quantized_matmul(
            x, self.codes, self.scales, self.biases, transpose=True, group_size=self.group_size, bits=self.bits
        )

    def take(self, indices: mx.array) -> mx.array:
        """Return the rows at `indices` (integers of any shape) in the compute dtype, [..., columns]."""
        return mx.dequantize(
            self.codes[indices], self.scales[indices], self.biases[indices], group_size=self.group_size, bits=self.bits
        )

    def expand(self, stream: mx.Stream | None = None) -> mx.array:
        """Return the whole matrix in the compute dtype, [rows, columns], computed on `stream` or the default one."""
        return mx.dequantize(
            self.codes, self.scales, self.biases, group_size=self.group_size, bits=self.bits, stream=stream
        )
