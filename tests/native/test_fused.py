"""What stands between products: against float64 and against themselves in other company."""

import math

import mlx.core as mx
import numpy as np
import pytest

from native import elements, kernels
from native.errors import OperandRejected
from tests.native.arrays import EVERY_SET, equal_bits, normal

TOLERANCE = 1e-5

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


def near(found: mx.array, exact: np.ndarray) -> bool:
    return np.allclose(np.array(found, np.float64), exact, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("width", [1, 7, 16, 576])
def test_rows_are_normalized(width: int) -> None:
    x, weight = normal(2, 3, width), normal(width, seed=2)

    exact = np.array(x, np.float64)
    exact = exact / np.sqrt(np.mean(exact**2, -1, keepdims=True) + 1e-5) * np.array(weight)

    assert near(kernels.rms_norm(x, weight, 1e-5), exact)
    assert equal_bits(kernels.rms_norm(x, weight, 1e-5)[1, 2], kernels.rms_norm(x[1, 2], weight, 1e-5))
    assert kernels.rms_norm(x[:0], weight, 1e-5).shape == (0, 3, width)


def test_rows_may_lie_anyhow() -> None:
    x, weight = normal(6, 32), normal(6)

    columns = kernels.rms_norm(x.T, weight, 1e-5)

    assert equal_bits(columns, kernels.rms_norm(mx.contiguous(x.T), weight, 1e-5))
    assert equal_bits(kernels.swiglu(x.T, x[::-1].T), kernels.swiglu(mx.contiguous(x.T), mx.contiguous(x[::-1].T)))


def test_halves_are_joined_for_any_size_of_number() -> None:
    gate = mx.concatenate([normal(5, 77) * 30, mx.array([[0.0, -0.0, 88.0, -88.0, 1000.0, -1000.0, 1e-30] * 11])])
    up = normal(6, 77, seed=3)

    exact = np.array(gate, np.float64)
    exact = exact * np.exp(-np.logaddexp(0, -exact)) * np.array(up)

    assert near(kernels.swiglu(gate, up), exact)


@pytest.mark.parametrize(("width", "half"), [(64, 32), (80, 40), (10, 5), (96, 16)])
def test_pairs_are_turned(width: int, half: int) -> None:
    x = mx.swapaxes(normal(2, 5, 3, width), 1, 2)
    angles = np.arange(5)[:, None] * np.linspace(0.1, 1, half)
    cosines, sines = mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))

    y = kernels.rotate(x, cosines, sines)

    front, back, rest = np.split(np.array(x, np.float64), [half, 2 * half], -1)
    turned = [front * np.cos(angles) - back * np.sin(angles), back * np.cos(angles) + front * np.sin(angles), rest]
    assert near(y, np.concatenate(turned, -1))
    assert equal_bits(y, kernels.rotate(x, mx.stack([cosines, cosines]), mx.stack([sines, sines])))
    assert equal_bits(y[:, :, 3:4], kernels.rotate(x[:, :, 3:4], cosines[3:4], sines[3:4]))


@pytest.mark.parametrize(("width", "half"), [(64, 32), (80, 40), (10, 5), (96, 16)])
def test_neighbours_are_turned_with_the_bits_of_halves(width: int, half: int) -> None:
    x, angles = normal(2, 3, 5, width), normal(5, half, seed=2)
    fronts, backs, rest = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2], x[..., 2 * half :]

    y = kernels.rotate(x, mx.cos(angles), mx.sin(angles), interleaved=True)

    in_halves = kernels.rotate(mx.concatenate([fronts, backs, rest], -1), mx.cos(angles), mx.sin(angles))
    assert equal_bits(y[..., 0 : 2 * half : 2], in_halves[..., :half])
    assert equal_bits(y[..., 1 : 2 * half : 2], in_halves[..., half : 2 * half])
    assert equal_bits(y[..., 2 * half :], rest)


def exact_attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float, is_causal: bool) -> np.ndarray:
    q, k, v = (np.array(part, np.float64) for part in (queries, keys, values))
    k, v = (np.repeat(part, q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if is_causal:
        places = np.arange(k.shape[2] - q.shape[2], k.shape[2])
        scores = np.where(np.arange(k.shape[2]) <= places[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.swapaxes(weights / weights.sum(-1, keepdims=True) @ v, 1, 2)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 300), (5, 5), (33, 100), (128, 128), (20, 1100)])
@pytest.mark.parametrize("width", [20, 64])
def test_queries_attend(width: int, num_queries: int, num_keys: int, is_causal: bool) -> None:
    queries = normal(2, 6, num_queries, width)
    keys, values = normal(2, 2, num_keys, width, seed=2), normal(2, 2, num_keys, width, seed=3)

    y = kernels.attention(queries, keys, values, 0.125, is_causal=is_causal)

    assert y.shape == (2, num_queries, 6, width)
    assert near(y, exact_attention(queries, keys, values, 0.125, is_causal))


def test_chunks_of_a_prompt_have_the_bits_of_the_whole() -> None:
    cache = normal(1, 2, 512, 64, seed=2)
    queries = normal(1, 300, 6, 64).swapaxes(1, 2)
    keys, values = cache[:, :, :300], cache[:, :, 200:500]
    kernels.set_threads(1)
    whole = kernels.attention(queries, keys, values, 0.125, is_causal=True)
    mx.eval(whole)

    for begin, end in [(0, 1), (0, 17), (17, 200), (200, 300), (299, 300)]:
        kernels.set_threads(1 + end % 4)
        rows = (queries[:, :, begin:end], keys[:, :, :end], values[:, :, :end])
        assert equal_bits(kernels.attention(*rows, 0.125, is_causal=True), whole[:, begin:end])


def test_large_scores_do_not_overflow() -> None:
    queries, keys, values = normal(1, 1, 4, 64) * 50, normal(1, 1, 40, 64, seed=2) * 50, normal(1, 1, 40, 64, seed=3)

    y = kernels.attention(queries, keys, values, 1.0, is_causal=False)

    exact = exact_attention(queries, keys, values, 1.0, is_causal=False)
    assert np.allclose(np.array(y), exact, atol=0.02)  # float32 scores of some ten thousand
    assert bool(mx.all(mx.isfinite(y)))


def test_several_products_at_once_have_the_bits_of_each() -> None:
    packed = [mx.quantize(normal(rows, 96, seed=rows), group_size=32, bits=4) for rows in (31, 40, 40, 1)]
    matrices = [(codes, scales, biases) for codes, scales, biases in packed]
    x = normal(2, 7, 96)

    each = [kernels.quantized_linear(x, *matrix, group_size=32, bits=4) for matrix in matrices]

    together = kernels.quantized_linears(x, matrices, 32, 4)
    assert all(equal_bits(left, right) for left, right in zip(together, each, strict=True))
    joined = kernels.quantized_swiglu(x, matrices[1], matrices[2], 32, 4)
    assert equal_bits(joined, kernels.swiglu(each[1], each[2]))


def test_arrays_that_do_not_fit_are_refused() -> None:
    x, cache = normal(1, 2, 3, 8), normal(1, 2, 3, 8)
    angles = normal(3, 4)
    refused = {
        "weight": lambda: kernels.rms_norm(x, normal(7), 1e-5),
        "x": lambda: kernels.rms_norm(x.astype(mx.float16), normal(8), 1e-5),
        "up": lambda: kernels.swiglu(x, x[:, :1]),
        "cosines": lambda: kernels.rotate(x, angles[:2], angles[:2]),
        "sines": lambda: kernels.rotate(x, angles, angles[:2]),
        "keys": lambda: kernels.attention(x, cache[:, :, :2], cache[:, :, :2], 1.0, is_causal=True),
        "values": lambda: kernels.attention(x, cache, cache[:, :, :2], 1.0, is_causal=True),
        "queries": lambda: mx.eval(
            kernels.attention(normal(1, 2, 8, 3).swapaxes(2, 3), cache, cache, 1.0, is_causal=True)
        ),
    }

    for operand, call in refused.items():
        with pytest.raises(OperandRejected) as caught:
            call()
        assert caught.value.operand == operand


def test_sums_have_the_bits_of_those_of_mlx() -> None:
    x, addend = normal(2, 5, 33), normal(33, seed=4)

    assert equal_bits(kernels.add(x, addend), x + addend)
    assert equal_bits(kernels.add(x, x[::-1]), x + x[::-1])
    assert equal_bits(kernels.add(normal(33, 5).T, addend), normal(33, 5).T + addend)
    with pytest.raises(OperandRejected):
        kernels.add(x, x[:1])


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_angles_are_those_of_positions(scale: float) -> None:
    positions, turns = mx.array([0, 1, 7, 4095, 131_071], dtype=mx.int32), mx.array([1.0, 0.1, 1e-4])

    cosines, sines = kernels.angles(positions, turns, scale)

    rounded = (np.array(positions, np.float32) * np.float32(scale))[:, None] * np.array(turns)
    exact = rounded.astype(np.float64)
    assert near(cosines, np.cos(exact))
    assert near(sines, np.sin(exact))
    assert kernels.angles(positions[:0], turns, scale)[0].shape == (0, 3)
    with pytest.raises(OperandRejected):
        kernels.angles(positions.astype(mx.int64), turns, scale)


@pytest.mark.parametrize("width", [1, 7, 16, 512, 515])
def test_rows_are_centred(width: int) -> None:
    x, weight, bias = normal(2, 3, width) * 3 + 5, normal(width, seed=2), normal(width, seed=3)

    exact = np.array(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    exact = exact * np.array(weight) + np.array(bias)

    assert near(elements.layer_norm(x, weight, bias, 1e-5), exact)
    assert equal_bits(
        elements.layer_norm(x, weight, bias, 1e-5)[1, 2], elements.layer_norm(x[1, 2], weight, bias, 1e-5)
    )
    assert equal_bits(
        elements.layer_norm(x.swapaxes(0, 1), weight, bias, 1e-5),
        elements.layer_norm(mx.contiguous(x.swapaxes(0, 1)), weight, bias, 1e-5),
    )
    assert elements.layer_norm(x[:0], weight, bias, 1e-5).shape == (0, 3, width)


def test_numbers_are_weighed_by_the_normal_distribution() -> None:
    x = mx.array(np.linspace(-30, 30, 6007, dtype=np.float32).reshape(1, 6007))

    exact = np.array([[v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in np.array(x[0], np.float64)]])

    found = np.array(elements.gelu(x), np.float64)
    assert (np.abs(found - exact) <= 2e-7 * np.maximum(1, np.abs(np.array(x)))).all()
    assert abs(found[0, 0]) < 1e-30
    assert found[0, -1] == 30
    assert equal_bits(elements.gelu(x)[:, 17:20], elements.gelu(x[:, 17:20]))
    assert equal_bits(elements.gelu(normal(5, 33).T), elements.gelu(mx.contiguous(normal(5, 33).T)))


def test_what_is_centred_or_weighed_must_fit() -> None:
    with pytest.raises(OperandRejected):
        elements.layer_norm(normal(2, 8), normal(7), normal(8), 1e-5)
    with pytest.raises(OperandRejected):
        elements.layer_norm(normal(2, 8), normal(8), normal(7), 1e-5)
    with pytest.raises(OperandRejected):
        elements.gelu(normal(2, 8).astype(mx.float16))
