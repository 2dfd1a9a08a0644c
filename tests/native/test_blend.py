"""What some layers do element by element: against float64, and against themselves in other company."""

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from native import blend, kernels
from native.errors import OperandRejected
from native.program import Program
from tests.native.arrays import EVERY_SET, equal_bits, normal

TOLERANCE = 1e-6

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("width", [1, 7, 16, 577])
def test_halves_are_joined_by_a_gelu(width: int) -> None:
    gate, up = 4 * normal(2, 3, width), normal(2, 3, width, seed=2)

    joined = blend.geglu(gate, up)

    exact = gelu(np.array(gate, np.float64)) * np.array(up, np.float64)
    assert np.abs(np.array(joined) - exact).max() < TOLERANCE * 10
    assert equal_bits(joined[1, 2], blend.geglu(gate[1, 2], up[1, 2]))
    assert blend.geglu(gate[:0], up[:0]).shape == (0, 3, width)


def test_a_gelu_far_from_zero_is_its_limit() -> None:
    far = mx.array([-1e4, -50.0, -9.0, 0.0, 9.0, 50.0, 1e4])

    found = np.array(blend.geglu(far, mx.ones(7)))

    assert np.abs(found - np.array([0, 0, 0, 0, 9, 50, 1e4])).max() < TOLERANCE


@pytest.mark.parametrize("bound", [1.0, 30.0])
@pytest.mark.parametrize("width", [1, 7, 577])
def test_elements_are_kept_within_a_bound(bound: float, width: int) -> None:
    x = mx.concatenate([bound * normal(5, width), mx.full((1, width), -1e6), mx.full((1, width), 1e6)])

    found = blend.soft_bound(x, bound)

    exact = bound * np.tanh(np.array(x, np.float64) / bound)
    assert np.abs(np.array(found) - exact).max() < TOLERANCE * bound
    assert equal_bits(found[3], blend.soft_bound(x[3], bound))


def test_products_have_the_bits_of_those_of_mlx() -> None:
    x, row, one = normal(2, 5, 33), normal(33, seed=4), normal(1, seed=5)

    assert equal_bits(blend.multiply(x, row), x * row)
    assert equal_bits(blend.multiply(x, x[::-1]), x * x[::-1])
    assert equal_bits(blend.multiply(x, one), x * one)
    assert equal_bits(blend.multiply(normal(33, 5).T, row), normal(33, 5).T * row)


@pytest.mark.parametrize("threads", [1, 3])
def test_columns_are_taken_from_rows_that_lie_anyhow(threads: int) -> None:
    kernels.set_threads(threads)
    x = normal(40, 700)

    assert equal_bits(blend.columns(x, 3, 600), x[:, 3:603])
    assert equal_bits(blend.columns(x.T, 0, 40), x.T)
    assert equal_bits(blend.columns(x[::-1, ::2], 349, 1), x[::-1, ::2][:, 349:])


@pytest.mark.parametrize("width", [1, 16, 20])
def test_runs_of_a_row_are_normalized_by_themselves(width: int) -> None:
    x, weight = normal(2, 3, 4 * width), normal(width, seed=2)

    found = kernels.rms_norm(x, weight, 1e-5)

    runs = mx.unflatten(x, -1, (4, width))
    assert equal_bits(found, mx.flatten(kernels.rms_norm(runs, weight, 1e-5), -2))
    turned = mx.contiguous(x.swapaxes(1, 2)).swapaxes(1, 2)
    assert equal_bits(kernels.rms_norm(turned, weight, 1e-5), found)


def test_all_of_them_can_be_recorded() -> None:
    row, one = normal(8, seed=7), normal(1, seed=8)

    def graph(x: mx.array) -> mx.array:
        first, second = blend.columns(x, 0, 8), blend.columns(x, 8, 8)
        gated = blend.geglu(blend.multiply(first, row), blend.multiply(second, one))
        return kernels.rms_norm(blend.soft_bound(gated, 3.0), row[:4], 1e-5)

    x = normal(3, 16)
    program = Program([x], [graph(x)], [("rows", None), ("rows", None)])
    other = normal(5, 16, seed=9)
    assert equal_bits(program([other])[0], graph(other))


def test_arrays_that_do_not_fit_are_refused() -> None:
    x = normal(2, 3, 8)
    refused: dict[str, list[Callable[[], mx.array]]] = {
        "up": [lambda: blend.geglu(x, x[:1]), lambda: blend.geglu(x, x.astype(mx.float16))],
        "gate": [lambda: blend.geglu(x.astype(mx.float16), x)],
        "factor": [lambda: blend.multiply(x, normal(3)), lambda: blend.multiply(x, x[0])],
        "x": [
            lambda: blend.columns(x, 0, 9),
            lambda: blend.columns(x, -1, 2),
            lambda: blend.columns(x, 0, 0),
            lambda: blend.columns(x, 2**31 - 1, 2),
            lambda: blend.soft_bound(mx.array(1.0), 1.0),
        ],
        "bound": [lambda: blend.soft_bound(x, 0.0), lambda: blend.soft_bound(x, -1.0)],
        "weight": [lambda: kernels.rms_norm(x, normal(3), 1e-5), lambda: kernels.rms_norm(x, normal(16), 1e-5)],
    }

    for operand, calls in refused.items():
        for call in calls:
            with pytest.raises(OperandRejected) as caught:
                call()
            assert caught.value.operand == operand
