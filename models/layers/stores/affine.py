"""Keys and values packed by MLX's own affine quantization, row by row.

The elements of a group lie on a line: code times scale plus bias. Scale and bias have the compute dtype, so an element
takes bits / 8 + 4 / group bytes in 16 bits and bits / 8 + 8 / group in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.layers.stores.buffers import Column


class AffineCodec:
    """Packs rows of D elements in groups, 4 or 8 bits each."""

    def __init__(self, head_dim: int, dtype: mx.Dtype, bits: int, group_size: int) -> None:
        """Prepare for heads of a width that is a multiple of `group_size` (32, 64 or 128)."""
        self._bits = bits
        self._group_size = group_size
        one = (
            Column(head_dim * bits // 32, mx.uint32),
            Column(head_dim // group_size, dtype),
            Column(head_dim // group_size, dtype),
        )
        self.columns = (*one, *one)

    def encode(self, keys: mx.array, values: mx.array) -> Sequence[mx.array]:
        """Return codes, scales and biases of the keys, then those of the values."""
        return [part for x in (keys, values) for part in mx.quantize(x, group_size=self._group_size, bits=self._bits)]

    def decode(self, coded: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Return keys and values [1, H_kv, T, D]."""
        keys, values = (
            mx.dequantize(codes, scales, biases, group_size=self._group_size, bits=self._bits)
            for codes, scales, biases in (coded[:3], coded[3:])
        )
        return keys, values
