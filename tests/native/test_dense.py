"""Dense matrices on the CPU: against float64, and against themselves with other rows, threads and instructions."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import dense, kernels
from native.errors import OperandRejected
from tests.native.arrays import EVERY_SET, equal_bits
from tests.support.failures import INDEX_OUTSIDE, problem_of

Linear = Callable[[mx.array, mx.array], mx.array]

TOLERANCE = 1e-5
MAX_ROWS = 300
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
# Less than a unit of 32 columns, whole units, a rest behind some, a chunk of 768, and a rest behind chunks.
WIDTHS = (1, 5, 32, 96, 100, 768, 771, 1637)

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("cpu"),
]


def normal(*shape: int, seed: int = 1, dtype: mx.Dtype = mx.float32) -> mx.array:
    made = mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)
    mx.eval(made)
    return made


def error_of(y: mx.array, x: mx.array, weight: mx.array) -> float:
    rows, values = np.array(x, np.float64), np.array(weight.astype(mx.float32), np.float64)
    exact, size = rows @ values.T, np.abs(rows) @ np.abs(values).T
    assert y.shape == exact.shape
    return float(np.max(np.abs(np.array(y, np.float64) - exact) / np.maximum(size, 1e-30), initial=0.0))


@dataclass(frozen=True)
class Case:
    """Numbers of a random product; a failure prints them, the seed among them."""

    name: str
    dtype: mx.Dtype
    columns: int
    outputs: int
    rows: int
    seed: int


CASES = st.builds(
    Case,
    name=st.sampled_from(EVERY_SET or ["none"]),
    dtype=st.sampled_from(DTYPES),
    columns=st.integers(0, 2000),
    outputs=st.integers(0, 70),
    rows=st.integers(0, MAX_ROWS),
    seed=st.integers(0, 2**32 - 1),
)


def is_right(linear: Linear, case: Case) -> bool:
    kernels.choose_instruction_set(case.name)
    weight = normal(case.outputs, case.columns, seed=case.seed, dtype=case.dtype)
    x = normal(case.rows, case.columns, seed=case.seed + 1)
    return error_of(linear(x, weight), x, weight) < TOLERANCE


@settings(max_examples=150, deadline=None)
@given(CASES)
def test_products_of_any_shape_are_right(case: Case) -> None:
    assert is_right(dense.linear, case)


def is_independent(linear: Linear, weight: mx.array, seed: int) -> bool:
    """Tell whether rows have the bits that they have alone, in companies of any number, at any place."""
    x = normal(MAX_ROWS, weight.shape[1], seed=seed)
    kernels.set_threads(1)
    alone = mx.concatenate([linear(x[row : row + 1], weight) for row in range(MAX_ROWS)])
    mx.eval(alone)
    for count in (*range(1, 40), *range(40, MAX_ROWS, 13), 127, 128, 129, MAX_ROWS):
        begin = (count * 31) % (MAX_ROWS - count + 1)
        kernels.set_threads((1, 2, 3, 8)[count % 4])
        found = linear(x[begin : begin + count], weight)
        if not equal_bits(found, alone[begin : begin + count]):
            print(f"seed {seed}: {count} rows from {begin}, by {kernels.instruction_set()}")
            return False
    return True


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company(instructions: str, dtype: mx.Dtype, columns: int) -> None:
    assert is_independent(dense.linear, normal(23, columns, dtype=dtype), seed=columns)


def without_last_column(x: mx.array, weight: mx.array) -> mx.array:
    return dense.linear(x[:, :-1], mx.contiguous(weight[:, :-1]))


def with_one_sum_moved(x: mx.array, weight: mx.array) -> mx.array:
    """Add up several rows in another order than one alone."""
    if x.shape[0] == 1:
        return dense.linear(x, weight)
    return dense.linear(x[:, ::-1], mx.contiguous(weight[:, ::-1]))


def test_the_checks_find_what_is_wrong() -> None:
    case = Case(EVERY_SET[0], mx.float32, columns=96, outputs=7, rows=3, seed=5)
    assert is_right(dense.linear, case)
    assert not is_right(without_last_column, case)
    assert is_right(with_one_sum_moved, case)
    assert not is_independent(with_one_sum_moved, normal(23, 96), seed=5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_with_any_number_of_threads(instructions: str, dtype: mx.Dtype) -> None:
    weight, x = normal(1000, 576, dtype=dtype), normal(130, 576)
    kernels.set_threads(1)
    alone = dense.linear(x, weight)
    mx.eval(alone)
    for threads in (2, 3, 8):
        kernels.set_threads(threads)
        assert equal_bits(dense.linear(x, weight), alone)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_floats_count_as_what_they_are_in_float32(instructions: str, dtype: mx.Dtype, columns: int) -> None:
    weight = normal(29, columns, dtype=dtype)
    wide = weight.astype(mx.float32)
    for rows in (1, 7, 60, 130):
        x = normal(rows, columns)
        assert equal_bits(dense.linear(x, weight), dense.linear(x, wide))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_every_half_float_is_read_without_rounding(instructions: str, dtype: mx.Dtype) -> None:
    table = mx.array(np.arange(2**16, dtype=np.uint16)).view(dtype).reshape(256, 256)
    wide = table.astype(mx.float32)
    is_number = ~np.isnan(np.array(wide))
    found = np.array(dense.rows(table, mx.arange(256)))
    assert np.array_equal(found[is_number].view(np.uint32), np.array(wide)[is_number].view(np.uint32))
    assert np.isnan(found[~is_number]).all()


@pytest.mark.parametrize("rows", [1, 3, 9, 40, 200])
@pytest.mark.parametrize("columns", [0, 7, 96, 800])
def test_an_addend_has_the_bits_of_a_sum(instructions: str, columns: int, rows: int) -> None:
    weight, x = normal(37, columns, dtype=mx.float16), normal(rows, columns)

    for addend in (normal(rows, 37), normal(37, rows).T, normal(2 * rows, 37)[::2]):
        assert equal_bits(dense.linear(x, weight, addend=addend), dense.linear(x, weight) + addend)


@pytest.mark.parametrize("rows", [1, 5, 140])
def test_several_matrices_give_what_each_gives(instructions: str, rows: int) -> None:
    x = normal(rows, 200)
    shapes = zip((64, 1, 0, 33), (*DTYPES, mx.float32), strict=True)
    weights = [normal(outputs, 200, dtype=dtype) for outputs, dtype in shapes]
    together = dense.linears(x, weights)
    assert all(equal_bits(y, dense.linear(x, weight)) for y, weight in zip(together, weights, strict=True))


@pytest.mark.parametrize("rows", [1, 5, 140])
@pytest.mark.parametrize("columns", [0, 7, 800])
def test_joined_products_have_the_bits_of_products_that_are_joined(instructions: str, columns: int, rows: int) -> None:
    x, gate, up = normal(rows, columns), normal(45, columns, dtype=mx.float16), normal(45, columns)
    expected = kernels.swiglu(dense.linear(x, gate), dense.linear(x, up))
    assert equal_bits(dense.linear_swiglu(x, gate, up), expected)


def test_instruction_sets_agree_but_for_rounding() -> None:
    weight, x = normal(64, 1537, dtype=mx.bfloat16), normal(20, 1537)
    for name in EVERY_SET:
        kernels.choose_instruction_set(name)
        assert error_of(dense.linear(x, weight), x, weight) < TOLERANCE


def test_leading_dimensions_are_kept() -> None:
    weight, x = normal(5, 70), normal(2, 3, 4, 70)

    assert dense.linear(x, weight).shape == (2, 3, 4, 5)
    assert dense.linear(x[0, 0, 0], weight).shape == (5,)
    assert equal_bits(dense.linear(x, weight)[1, 2, 3], dense.linear(x[1, 2, 3], weight))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: mx.swapaxes(x, 0, 1),
        lambda x: x[:, ::2],
        lambda x: x[..., ::-1],
        lambda x: mx.broadcast_to(x[:1], x.shape),
        lambda x: mx.contiguous(mx.swapaxes(x, 1, 2)).swapaxes(1, 2),
    ],
    ids=["transposed", "strided", "reversed", "broadcast", "columns first"],
)
def test_rows_may_lie_anyhow(view: Callable[[mx.array], mx.array], instructions: str) -> None:
    weight, x = normal(7, 97), view(normal(4, 6, 97))

    assert equal_bits(dense.linear(x, weight), dense.linear(mx.contiguous(x), weight))


def test_nothing_gives_nothing() -> None:
    assert dense.linear(mx.zeros((0, 64)), normal(5, 64)).shape == (0, 5)
    assert dense.linear(mx.zeros((3, 64)), mx.zeros((0, 64))).shape == (3, 0)
    assert dense.linear(mx.zeros((3, 0)), mx.zeros((5, 0))).tolist() == [[0.0] * 5] * 3
    assert dense.rows(normal(5, 64), mx.array([], mx.int32)).shape == (0, 64)
    assert dense.rows(mx.zeros((5, 0)), mx.array([1])).shape == (1, 0)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_looked_up(instructions: str, dtype: mx.Dtype, columns: int) -> None:
    weight = normal(50, columns, dtype=dtype)
    indices = mx.array(np.random.default_rng(2).integers(0, 50, (3, 40)).astype(np.uint16))

    assert equal_bits(dense.rows(weight, indices), weight.astype(mx.float32)[indices])


def test_what_is_no_number_spoils_its_own_row_alone() -> None:
    x = normal(9, 100)
    x[4, 99] = mx.array(float("nan"))
    y = np.array(dense.linear(x, normal(13, 100, dtype=mx.float16)))

    assert np.isnan(y[4]).all()
    assert np.isfinite(np.delete(y, 4, axis=0)).all()


def test_works_beside_other_operations_of_a_graph() -> None:
    weight, x = normal(96, 96), normal(2, 96)

    y = dense.linear(mx.maximum(dense.linear(x * 2, weight), 0), weight) + 1

    values = np.array(weight, np.float64)
    steps = np.maximum(np.array(x * 2, np.float64) @ values.T, 0) @ values.T + 1
    assert np.allclose(np.array(y), steps, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "operand"),
    [
        ({"x": mx.zeros((2, 128), mx.float16)}, "x"),
        ({"x": mx.zeros((2, 96))}, "x"),
        ({"x": mx.array(1.0)}, "x"),
        ({"weight": mx.zeros((4, 128), mx.int32)}, "weight"),
        ({"weight": mx.zeros((128,))}, "weight"),
        ({"weight": mx.zeros((1, 4, 128))}, "weight"),
        ({"weight": mx.zeros((128, 4)).T}, "weight"),
        ({"weight": mx.zeros((4, 256))[:, ::2]}, "weight"),
        ({"addend": mx.zeros((2, 5))}, "addend"),
        ({"addend": mx.zeros((4,))}, "addend"),
        ({"addend": mx.zeros((2, 4), mx.float16)}, "addend"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(change: dict[str, mx.array], operand: str) -> None:
    operands = {"x": normal(2, 128), "weight": normal(4, 128)}

    with pytest.raises(OperandRejected, match=operand) as caught:
        mx.eval(dense.linear(**(operands | change)))

    assert caught.value.operand == operand


def test_joined_matrices_have_one_shape() -> None:
    with pytest.raises(OperandRejected, match="up has not the shape of gate"):
        dense.linear_swiglu(normal(2, 64), normal(4, 64), normal(5, 64))


@pytest.mark.parametrize("number", [-1, 4, 2**40])
def test_a_number_outside_is_an_error_and_no_crash(number: int) -> None:
    assert problem_of(dense.rows(normal(4, 64), mx.array([0, number]))) == INDEX_OUTSIDE
    with pytest.raises(OperandRejected, match="indices is not of integers"):
        dense.rows(normal(4, 64), mx.zeros((2,)))
    assert error_of(dense.linear(normal(2, 64), normal(4, 64)), normal(2, 64), normal(4, 64)) < TOLERANCE
