"""Low-rank products: those of the definition, with the bits that a row has alone, whatever the others are for."""

from collections.abc import Iterator
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from native import kernels, low_rank
from native.errors import OperandRejected

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")

COLUMNS, OUTPUTS = 70, 45
RANKS = (1, 4, 7, 64)
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
Matrices = list[tuple[mx.array, mx.array]]


@pytest.fixture(params=kernels.instruction_sets() if kernels.is_available() else [])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.instruction_set()
    kernels.choose_instruction_set(request.param)
    yield request.param
    kernels.choose_instruction_set(before)


def numbers(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def matrices(columns: int = COLUMNS, outputs: int = OUTPUTS, dtype: mx.Dtype = mx.float32) -> Matrices:
    return [
        (numbers(seed, rank, columns).astype(dtype), numbers(seed + 100, rank, outputs).astype(dtype))
        for seed, rank in enumerate(RANKS)
    ]


def exact(x: mx.array, addend: mx.array, made: Matrices, scales: list[float], rows: list[list[int]]) -> np.ndarray:
    """Return the sum in doubles."""
    flat, total = np.array(x, np.float64).reshape(-1, x.shape[-1]), np.array(addend, np.float64)
    shape, total = total.shape, total.reshape(-1, total.shape[-1])
    for (down, up), scale, part in zip(made, scales, rows, strict=True):
        wide = [np.array(matrix.astype(mx.float32), np.float64) for matrix in (down, up)]
        total[part] += scale * (flat[part] @ wide[0].T @ wide[1])
    return total.reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(COLUMNS, OUTPUTS), (64, 128), (800, 3), (1, 1), (33, 64)])
def test_gives_the_sum_that_it_says(instruction_set: str, sizes: tuple[int, int], dtype: mx.Dtype) -> None:
    x, addend = numbers(1, 1, 12, sizes[0]), numbers(2, 1, 12, sizes[1])
    made, scales = matrices(*sizes, dtype), [2.0, -0.5, 1.0, 0.25]
    rows = [[3, 0], [5, 6, 7], [1], [11, 10, 9, 2]]
    found = np.array(low_rank.add(x, addend, made, scales, rows))
    np.testing.assert_allclose(found, exact(x, addend, made, scales, rows), rtol=1e-4, atol=1e-3)
    for row in (4, 8):
        np.testing.assert_array_equal(found[0, row], np.array(addend)[0, row])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_row_has_the_bits_that_it_has_alone(instruction_set: str, threads: int) -> None:
    before = kernels.threads()
    kernels.set_threads(threads)
    num_rows = 300
    x, addend, made = numbers(1, 1, num_rows, COLUMNS), numbers(2, 1, num_rows, OUTPUTS), matrices()
    shuffled = np.random.default_rng(3).permutation(num_rows)
    cuts = (0, 100, 101, 240, 290)
    rows = [[int(row) for row in shuffled[begin:end]] for begin, end in pairwise(cuts)]
    together = low_rank.add(x, addend, made, [1.5] * 4, rows)
    for pair, part in zip(made, rows, strict=True):
        for row in part[:20]:
            alone = low_rank.add(x[:, row : row + 1], addend[:, row : row + 1], [pair], [1.5], [[0]])
            assert mx.array_equal(together[:, row : row + 1], alone)
    kernels.set_threads(before)


def test_reads_rows_in_any_layout() -> None:
    wide, tall = numbers(1, 1, 6, 2 * COLUMNS), numbers(2, 1, OUTPUTS, 6)
    x, addend = wide[..., ::2], mx.swapaxes(tall, 1, 2)
    made, rows = matrices()[:1], [[0, 2, 5]]
    plain = low_rank.add(mx.contiguous(x), mx.contiguous(addend), made, [1.0], rows)
    assert mx.array_equal(low_rank.add(x, addend, made, [1.0], rows), plain)


def test_none_stands_for_every_row() -> None:
    x, addend, made = numbers(1, 1, 9, COLUMNS), numbers(2, 1, 9, OUTPUTS), matrices()[1:2]
    every = low_rank.add(x, addend, made, [2.0], [list(range(9))])
    assert mx.array_equal(low_rank.add(x, addend, made, [2.0], [None]), every)


def test_no_product_at_all_gives_the_addend() -> None:
    x, addend = numbers(1, 1, 3, 5), numbers(2, 1, 3, 4)
    assert mx.array_equal(low_rank.add(x, addend, [], [], []), addend)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": [[0], [0]]}, "name one row twice"),
        ({"rows": [[0], [3]]}, "name a row that x has not"),
        ({"rows": [[0], [-1]]}, "name a row that x has not"),
        ({"rows": [None, [0]]}, "name one row twice"),
        ({"rows": [[0]]}, "are not as many"),
        ({"scales": [1.0]}, "are not as many"),
        ({"addend": numbers(2, 1, 4, OUTPUTS)}, "has not the rows of x"),
        ({"addend": numbers(2, 3, OUTPUTS)}, "has not the dimensions of x"),
        ({"x": numbers(2, 1, 3, COLUMNS + 1)}, "has not the columns of x"),
        ({"addend": numbers(2, 1, 3, OUTPUTS + 1)}, "has not the columns of addend"),
        ({"matrices": [matrices()[0], (matrices()[0][0], matrices()[1][1])]}, "has not the rank of down"),
        ({"matrices": [matrices()[0], (matrices()[1][0].astype(mx.int32), matrices()[1][1])]}, "is not of float32"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], problem: str) -> None:
    fitting = {
        "x": numbers(1, 1, 3, COLUMNS),
        "addend": numbers(2, 1, 3, OUTPUTS),
        "matrices": matrices()[:2],
        "scales": [1.0, 1.0],
        "rows": [[0], [1]],
    }
    with pytest.raises(OperandRejected, match=problem):
        low_rank.add(**{**fitting, **change})  # pyright: ignore[reportArgumentType]
