"""Keys and values packed by TurboQuant: affine keys, and values rotated and matched with the nearest centroids."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.layers.stores.buffers import Column
from models.layers.stores.turboquant import GROUP_SIZE, KeyCodec, ValueCodec


class TurboCodec:
    """Packs keys and values of one head width."""

    def __init__(self, head_dim: int, dtype: mx.Dtype, key_bits: int, value_bits: int) -> None:
        """Prepare for heads of 64, 128, 256 or 512; keys of 2, 4, 5 or 8 bits, values of 2, 3, 4, 5 or 8."""
        self._dtype = dtype
        self._keys = KeyCodec(key_bits)
        self._values = ValueCodec(value_bits, head_dim)
        num_groups = head_dim // GROUP_SIZE
        self.columns = (
            Column(head_dim * key_bits // 8, mx.uint8),
            Column(num_groups, mx.float16),
            Column(num_groups, mx.float16),
            Column(head_dim * value_bits // 8, mx.uint8),
            Column(num_groups, mx.float16),
        )

    def encode(self, keys: mx.array, values: mx.array) -> Sequence[mx.array]:
        """Return codes, scales and zeros of the keys, then codes and scales of the values."""
        return [*self._keys.encode(keys), *self._values.encode(values)]

    def decode(self, coded: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Return keys and values [1, H_kv, T, D]."""
        key_codes, key_scales, key_zeros, value_codes, value_scales = coded
        keys = self._keys.decode(key_codes, key_scales, key_zeros)
        values = self._values.decode(value_codes, value_scales)
        return keys.astype(self._dtype), values.astype(self._dtype)
