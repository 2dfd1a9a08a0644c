"""The TurboQuant codec in MLX's operations: groups of 32 along the width of a head, all arithmetic in float32.

Keys lie on a line in each group, code plus zero times scale. Values are turned first: a random sign each and a Hadamard
transform make any vector look like normal noise, whose best centroids are known (`models.layers.stores.lloyd_max`);
each group keeps its root mean square. Scales and zeros are stored in float16.

A group of keys that are all but equal has a zero beyond float16. It is stored as infinity on purpose: that says that
the scale is the group's value itself.

Source: Zandieh et al. 2025, arXiv:2504.19874.
"""

from __future__ import annotations

import mlx.core as mx

from models.layers.stores.bitstream import pack, unpack
from models.layers.stores.lloyd_max import boundaries, centroids

GROUP_SIZE = 32
_FLOAT16_MAX = 65504.0
_SMALLEST_STEP = 1e-8
_SIGN_SEED = 42
# How many codes one look-up turns into centroids: as many as whole numbers of at most 12 bits hold.
_CODES_A_LOOKUP = {2: 4, 3: 4, 4: 2, 5: 2, 8: 1}


class KeyCodec:
    """Packs keys of 2, 4, 5 or 8 bits."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def encode(self, keys: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Pack [..., D].

        Returns:
            Codes uint8 [..., D * bits / 8], scales and zeros float16 [..., D / 32].
        """
        groups = _grouped(keys.astype(mx.float32))  # [..., D / 32, 32]
        low, high = mx.min(groups, axis=-1, keepdims=True), mx.max(groups, axis=-1, keepdims=True)
        if self._bits == 8:
            scales = (high - low) / 254
            zeros = mx.round((high + low) / (2 * (scales + _SMALLEST_STEP)))
            codes = mx.clip(mx.round(groups / (scales + _SMALLEST_STEP) - zeros), -127, 127)
            packed = mx.view(_joined(codes).astype(mx.int8), mx.uint8)
        else:
            most = (1 << self._bits) - 1
            scales = (high - low) / most
            zeros = mx.round(low / (scales + _SMALLEST_STEP))
            codes = mx.clip(mx.round(groups / (scales + _SMALLEST_STEP) - zeros), 0, most)
            packed = pack(_joined(codes), self._bits)
        is_constant = mx.abs(zeros) > _FLOAT16_MAX
        scales = mx.where(is_constant, _within_float16((high + low) / 2), scales)
        zeros = mx.where(is_constant, mx.sign(zeros) * mx.inf, zeros)
        return packed, _joined(scales).astype(mx.float16), _joined(zeros).astype(mx.float16)

    def decode(self, packed: mx.array, scales: mx.array, zeros: mx.array) -> mx.array:
        """Return float32 [..., D]."""
        codes = mx.view(packed, mx.int8) if self._bits == 8 else unpack(packed, self._bits)
        groups = _grouped(codes.astype(mx.float32))
        scales, zeros = scales[..., None].astype(mx.float32), zeros[..., None].astype(mx.float32)
        return _joined(mx.where(mx.isinf(zeros), scales, (groups + zeros) * scales))


class ValueCodec:
    """Packs values of 2, 3, 4, 5 or 8 bits, of heads of one width."""

    def __init__(self, bits: int, head_dim: int) -> None:
        self._bits = bits
        self._signs = random_signs(head_dim)
        levels = centroids(bits)
        self._boundaries = mx.array(boundaries(levels), dtype=mx.float32)
        self._lookup_bits = bits * _CODES_A_LOOKUP[bits]
        words = mx.arange(1 << self._lookup_bits)[:, None] >> mx.arange(0, self._lookup_bits, bits)
        # [words, codes of a word]
        self._centroids = mx.array(levels, dtype=mx.float32)[words & ((1 << bits) - 1)]
        mx.eval(self._signs, self._boundaries, self._centroids)  # pyright: ignore[reportUnknownMemberType]

    def encode(self, values: mx.array) -> tuple[mx.array, mx.array]:
        """Pack [..., D].

        Returns:
            Codes uint8 [..., D * bits / 8] and scales float16 [..., D / 32].
        """
        turned = mx.hadamard_transform(values.astype(mx.float32) * self._signs)  # scaled by 1 / sqrt(D)
        groups = _grouped(turned)
        scales = mx.sqrt(mx.mean(mx.square(groups), axis=-1, keepdims=True))
        codes = mx.searchsorted(self._boundaries, groups / mx.where(scales > 0, scales, 1.0))
        return pack(_joined(codes), self._bits), _joined(_within_float16(scales)).astype(mx.float16)

    def decode(self, packed: mx.array, scales: mx.array) -> mx.array:
        """Return float32 [..., D]."""
        found = self._centroids[unpack(packed, self._lookup_bits)]  # [..., words, codes of a word]
        groups = mx.reshape(found, (*scales.shape, GROUP_SIZE)) * scales[..., None].astype(mx.float32)
        return mx.hadamard_transform(_joined(groups)) * self._signs


def random_signs(head_dim: int) -> mx.array:
    """Return the fixed signs of values of this width: float32 [D] of 1 and -1."""
    is_positive = mx.random.bernoulli(0.5, (head_dim,), key=mx.random.key(_SIGN_SEED))
    return mx.where(is_positive, 1.0, -1.0)


def _grouped(x: mx.array) -> mx.array:
    """Return [..., D] as [..., D / 32, 32]."""
    return mx.reshape(x, (*x.shape[:-1], -1, GROUP_SIZE))


def _joined(x: mx.array) -> mx.array:
    """Return [..., M, N] as [..., M * N]."""
    return mx.reshape(x, (*x.shape[:-2], -1))


def _within_float16(x: mx.array) -> mx.array:
    return mx.clip(x, -_FLOAT16_MAX, _FLOAT16_MAX)
