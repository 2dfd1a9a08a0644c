"""The codecs against their rules in float64, and how far what they return is from what they were given."""

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from models.layers.stores.affine import AffineCodec
from models.layers.stores.bitstream import pack, unpack
from models.layers.stores.coded import Codec
from models.layers.stores.lloyd_max import boundaries, centroids
from models.layers.stores.turbo import TurboCodec
from models.layers.stores.turboquant import KeyCodec, ValueCodec, random_signs

KEY_BITS, VALUE_BITS, HEAD_DIMS = (2, 4, 5, 8), (2, 3, 4, 5, 8), (64, 128, 256, 512)
Numbers = np.ndarray


def numbers(head_dim: int, num_tokens: int = 300, seed: int = 0) -> Numbers:
    """Return float32 [1, 2, T, D]: normal, each channel with a scale and a middle of its own."""
    draw = np.random.default_rng(seed)
    channels = draw.normal(size=(2, head_dim)) * 2
    x = draw.normal(size=(1, 2, num_tokens, head_dim)) * np.exp(channels[0] / 4) + channels[1]
    return x.astype(np.float32)


def unpacked(packed: mx.array, bits: int) -> Numbers:
    """Read little-endian numbers with NumPy alone."""
    stream = np.unpackbits(np.array(packed), axis=-1, bitorder="little")
    digits = stream.reshape(*packed.shape[:-1], -1, bits)
    return (digits * (1 << np.arange(bits))).sum(-1)


def grouped(x: Numbers) -> Numbers:
    return x.reshape(*x.shape[:-1], -1, 32).astype(np.float64)


def hadamard(size: int) -> Numbers:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    return matrix


def relative_error(found: Numbers, given: Numbers) -> float:
    return float(np.sqrt(np.mean((found - given) ** 2) / np.mean(given.astype(np.float64) ** 2)))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8, 10, 12])
def test_numbers_are_packed_as_a_little_endian_stream(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, (2, 3, 64))
    packed = pack(mx.array(values), bits)
    assert (packed.dtype, packed.shape) == (mx.uint8, (2, 3, 8 * bits))
    assert (unpacked(packed, bits) == values).all()
    assert (np.array(unpack(packed, bits)) == values).all()


def test_eight_numbers_of_three_bits_are_three_bytes() -> None:
    packed = pack(mx.array([[1, 2, 3, 4, 5, 6, 7, 0]]), 3)
    assert packed.tolist() == [list(0b000_111_110_101_100_011_010_001.to_bytes(3, "little"))]


def test_the_centroids_of_three_bits_are_those_of_the_literature() -> None:
    positive = [0.24509, 0.75601, 1.34391, 2.15195]
    levels = centroids(3)
    assert levels == pytest.approx([-x for x in reversed(positive)] + positive, abs=6e-6)
    assert boundaries(levels)[3:] == pytest.approx([0, 0.50055, 1.04996, 1.74793], abs=6e-6)


@pytest.mark.parametrize(
    ("bits", "distortion"), [(2, 0.1175), (3, 0.03454), (4, 0.009497), (5, 0.002499), (8, 0.0000413)]
)
def test_the_centroids_have_the_known_distortion(bits: int, distortion: float) -> None:
    levels = centroids(bits)
    assert levels == sorted(levels)
    assert levels == [-x for x in reversed(levels)]
    x = np.linspace(-9, 9, 2_000_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    nearest = np.array(levels)[np.searchsorted(boundaries(levels), x)]
    # Max 1960, table 1, for up to 5 bits; for 8, Panter and Dite's limit sqrt(3) pi / 2 / 4**8.
    assert np.trapezoid(density * (x - nearest) ** 2, x) == pytest.approx(distortion, rel=0.02)


@pytest.mark.parametrize("bits", VALUE_BITS)
def test_lloyd_s_iteration_leaves_the_centroids_where_they_are(bits: int) -> None:
    levels = centroids(bits)
    edges = [-math.inf, *boundaries(levels), math.inf]
    for level, low, high in zip(levels, edges, edges[1:], strict=False):
        mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
        mean = (math.exp(-low * low / 2) - math.exp(-high * high / 2)) / math.sqrt(2 * math.pi) / mass
        assert mean == pytest.approx(level, abs=1e-8)


def key_rule(x: Numbers, bits: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return exact scales, zeros and codes before rounding, of float64 groups."""
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    scales = (high - low) / (254 if bits == 8 else 2**bits - 1)
    start = (high + low) / 2 if bits == 8 else low
    zeros = np.round(start / (scales + 1e-8))
    return scales, zeros, x / (scales + 1e-8) - zeros


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", KEY_BITS)
def test_keys_follow_the_rule(bits: int, head_dim: int) -> None:
    x = numbers(head_dim)
    packed, scales, zeros = KeyCodec(bits).encode(mx.array(x))
    assert (packed.shape[-1], scales.dtype, zeros.dtype) == (head_dim * bits // 8, mx.float16, mx.float16)
    codes = np.array(mx.view(packed, mx.int8)).astype(int) if bits == 8 else unpacked(packed, bits)
    scale, zero, exact = key_rule(grouped(x), bits)
    bounds = (-127, 127) if bits == 8 else (0, 2**bits - 1)
    assert np.abs(np.clip(exact, *bounds) - grouped(codes)).max() < 0.5 + 1e-3
    assert np.allclose(np.array(scales)[..., None], scale, rtol=2**-11)
    # A zero that lies within float32's rounding of a half may fall on either side.
    assert (np.abs(np.array(zeros)[..., None] - zero) <= 1).all()
    stored_scale, stored_zero = (np.array(part, dtype=np.float64)[..., None] for part in (scales, zeros))
    expected = (grouped(codes) + stored_zero) * stored_scale
    found = np.array(KeyCodec(bits).decode(packed, scales, zeros))
    assert np.allclose(grouped(found), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", VALUE_BITS)
def test_values_follow_the_rule(bits: int, head_dim: int) -> None:
    x = numbers(head_dim)
    codec = ValueCodec(bits, head_dim)
    packed, scales = codec.encode(mx.array(x))
    assert (packed.shape[-1], scales.dtype) == (head_dim * bits // 8, mx.float16)
    signs, matrix = np.array(random_signs(head_dim), dtype=np.float64), hadamard(head_dim) / math.sqrt(head_dim)
    turned = grouped((x * signs) @ matrix)
    rms = np.sqrt(np.mean(turned**2, axis=-1, keepdims=True))
    assert np.allclose(np.array(scales)[..., None], rms, rtol=2**-10)
    levels = np.array(centroids(bits))
    chosen = levels[grouped(unpacked(packed, bits)).astype(int)]
    unit = turned / rms
    nearest = np.array(levels)[np.searchsorted(boundaries(list(levels)), unit)]
    assert (np.abs(unit - chosen) <= np.abs(unit - nearest) + 1e-5).all()
    back = (chosen * np.array(scales, dtype=np.float64)[..., None]).reshape(x.shape) @ matrix * signs
    assert np.allclose(np.array(codec.decode(packed, scales)), back, rtol=1e-5, atol=1e-5)


def test_the_signs_are_fixed() -> None:
    # What is stored on disk is read with them.
    words = {d: sum(int(x > 0) << i for i, x in enumerate(np.array(random_signs(d))[:32])) for d in HEAD_DIMS}
    assert words == {64: 0x4896AB71, 128: 0x95C620F2, 256: 0x9D19CFED, 512: 0x8FC9B442}
    assert set(np.unique(np.array(random_signs(512)))) == {-1.0, 1.0}


@pytest.mark.parametrize("bits", KEY_BITS)
@pytest.mark.parametrize("value", [3.0, -1000.0, 0.07, 0.0, 60000.0])
def test_a_constant_group_of_keys_comes_back_as_its_value(bits: int, value: float) -> None:
    x = numbers(64, 2)
    x[0, 0, 1, 32:] = value
    codec = KeyCodec(bits)
    packed, scales, zeros = codec.encode(mx.array(x))
    assert np.isinf(np.array(zeros)[0, 0, 1, 1]) == (value != 0)
    found = np.array(codec.decode(packed, scales, zeros))
    assert np.isfinite(found).all()
    assert found[0, 0, 1, 32:] == pytest.approx(value, rel=2**-11)


@pytest.mark.parametrize("bits", KEY_BITS)
def test_a_nearly_constant_group_of_keys_stays_within_its_range(bits: int) -> None:
    x = np.full((1, 1, 1, 64), 100, dtype=np.float32)
    x[..., ::2] += 0.01
    codec = KeyCodec(bits)
    assert np.array(codec.decode(*codec.encode(mx.array(x)))) == pytest.approx(x, abs=0.06)


@pytest.mark.parametrize("bits", VALUE_BITS)
def test_values_of_zero_come_back_as_zero(bits: int) -> None:
    codec = ValueCodec(bits, 64)
    assert not np.array(codec.decode(*codec.encode(mx.zeros((1, 1, 3, 64))))).any()


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.42), (4, 0.085), (5, 0.041), (8, 0.0055)])
def test_keys_of_normal_noise_are_this_near(bits: int, bound: float) -> None:
    x = np.random.default_rng(1).normal(size=(1, 2, 500, 64)).astype(np.float32)
    codec = KeyCodec(bits)
    error = relative_error(np.array(codec.decode(*codec.encode(mx.array(x)))), x)
    assert bound / 1.4 < error < bound


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.36), (3, 0.195), (4, 0.103), (5, 0.054), (8, 0.0075)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_values_are_this_near_whatever_their_distribution(bits: int, bound: float, head_dim: int) -> None:
    draw = np.random.default_rng(2)
    normal = draw.normal(size=(1, 2, 400, head_dim))
    uneven = normal * np.exp(draw.normal(size=head_dim))
    for x in (normal, uneven):
        codec = ValueCodec(bits, head_dim)
        error = relative_error(np.array(codec.decode(*codec.encode(mx.array(x.astype(np.float32))))), x)
        assert bound / 1.4 < error < bound


@pytest.mark.parametrize(
    ("bits", "group_size", "bound"), [(8, 32, 0.005), (8, 64, 0.006), (4, 32, 0.085), (4, 64, 0.1)]
)
def test_affine_rows_are_this_near(bits: int, group_size: int, bound: float) -> None:
    x = np.random.default_rng(3).normal(size=(1, 2, 400, 64)).astype(np.float32)
    codec = AffineCodec(64, mx.float32, bits, group_size)
    keys, values = codec.decode(codec.encode(mx.array(x), mx.array(-x)))
    for found, given in ((keys, x), (values, -x)):
        assert bound / 1.4 < relative_error(np.array(found), given) < bound


@pytest.mark.parametrize("bits", [4, 8])
def test_affine_rows_are_mlx_s_own(bits: int) -> None:
    x = mx.array(numbers(128))
    codec = AffineCodec(128, mx.float32, bits, 64)
    coded = codec.encode(x, x + 1)
    for part, stored in zip((*mx.quantize(x, 64, bits), *mx.quantize(x + 1, 64, bits)), coded, strict=True):
        assert mx.array_equal(part, stored)
    # Row by row, in float64: code times scale plus bias.
    codes = unpacked(mx.view(mx.contiguous(coded[0]), mx.uint8), bits).reshape(1, 2, 300, 2, 64)
    scales, biases = (np.array(part, dtype=np.float64)[..., None] for part in coded[1:3])
    found = np.array(codec.decode(coded)[0]).reshape(codes.shape)
    assert np.allclose(found, codes * scales + biases, rtol=1e-5, atol=1e-6)
    is_inner = (codes > 0) & (codes < 2**bits - 1)
    assert (np.abs(found - np.array(x).reshape(codes.shape)) <= np.abs(scales) * 0.501)[is_inner].all()


CODECS: dict[str, Callable[[mx.Dtype], Codec]] = {
    "affine": lambda dtype: AffineCodec(128, dtype, 4, 32),
    "turbo": lambda dtype: TurboCodec(128, dtype, 8, 3),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_gives_back_the_compute_dtype_in_the_columns_it_names(codec: str, dtype: mx.Dtype) -> None:
    made = CODECS[codec](dtype)
    x = mx.array(numbers(128, 20)).astype(dtype)
    coded = made.encode(x, x)
    assert [(array.shape[-1], array.dtype) for array in coded] == list(made.columns)
    for found in made.decode(coded):
        assert (found.dtype, found.shape) == (dtype, x.shape)
    whole = [np.array(found.astype(mx.float32)) for found in made.decode(coded)]
    single = [
        np.array(mx.concatenate(list(pieces), axis=2).astype(mx.float32))
        for pieces in zip(
            *(made.decode(made.encode(x[:, :, t : t + 1], x[:, :, t : t + 1])) for t in range(20)), strict=True
        )
    ]
    assert all((a == b).all() for a, b in zip(whole, single, strict=True))
