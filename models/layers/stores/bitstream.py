"""Unsigned numbers of few bits, packed one behind the other along the last axis, the lowest bit first."""

from __future__ import annotations

import math

import mlx.core as mx

_BYTE_BITS = 8


def pack(values: mx.array, bits: int) -> mx.array:
    """Return [..., N] numbers below 2**bits as uint8 [..., N * bits / 8]; N * bits is a multiple of 8."""
    return _regroup(values.astype(mx.uint16), bits, _BYTE_BITS).astype(mx.uint8)


def unpack(packed: mx.array, bits: int) -> mx.array:
    """Return uint8 [..., M] as numbers of `bits` bits each, 12 at most: uint8 or uint16 [..., M * 8 / bits]."""
    if bits == _BYTE_BITS:
        return packed
    return _regroup(packed.astype(mx.uint16), _BYTE_BITS, bits)


def _regroup(values: mx.array, from_bits: int, to_bits: int) -> mx.array:
    """Cut the stream that uint16 numbers of `from_bits` make into numbers of `to_bits`."""
    period = math.lcm(from_bits, to_bits)
    grouped = mx.reshape(values, (*values.shape[:-1], -1, period // from_bits))
    pieces = [_piece(grouped, start, from_bits, to_bits) for start in range(0, period, to_bits)]
    return mx.reshape(mx.stack(pieces, axis=-1), (*values.shape[:-1], -1))


def _piece(grouped: mx.array, start: int, from_bits: int, to_bits: int) -> mx.array:
    """Return the number of `to_bits` bits that begins at bit `start` of each group."""
    first = start // from_bits
    piece = grouped[..., first] >> (start - first * from_bits)
    for index in range(first + 1, -(-(start + to_bits) // from_bits)):
        piece = piece | (grouped[..., index] << (index * from_bits - start))
    return piece & ((1 << to_bits) - 1)
