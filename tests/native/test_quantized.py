"""Quantized matrices on the CPU: against float64, and against themselves with other rows, threads and instructions."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import kernels
from native.errors import InstructionSetMissing, OperandRejected, QuantizationUnsupported
from tests.native.arrays import EVERY_SET, equal_bits, normal
from tests.support.failures import INDEX_OUTSIDE, problem_of

TOLERANCE = 1e-5
MAX_ROWS = 300
SCALE_DTYPES = (mx.float32, mx.bfloat16, mx.float16)

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("cpu"),
]


@dataclass(frozen=True)
class Packed:
    """A random matrix, and what it stands for."""

    codes: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int
    values: np.ndarray

    def linear(self, x: mx.array) -> mx.array:
        return kernels.quantized_linear(x, self.codes, self.scales, self.biases, self.group_size, self.bits)

    def rows(self, indices: mx.array) -> mx.array:
        return kernels.quantized_rows(self.codes, self.scales, self.biases, indices, self.group_size, self.bits)

    def gather(self, x: mx.array, choices: mx.array) -> mx.array:
        return kernels.gather_quantized_linear(
            x, self.codes, self.scales, self.biases, choices, group_size=self.group_size, bits=self.bits
        )


def packed(*shape: int, bits: int = 4, group_size: int = 32, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Packed:
    """Pack random codes, whose values are then known without rounding."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2**bits, shape)
    groups = (*shape[:-1], shape[-1] // group_size)
    scales, biases = (mx.array(random.normal(0, 0.1, groups)).astype(dtype) for _ in range(2))
    in_float64 = [np.array(part.astype(mx.float32), np.float64) for part in (scales, biases)]
    scale, bias = (np.repeat(part, group_size, -1) for part in in_float64)
    made = mx.array(words(codes, bits)), scales, biases
    mx.eval(made)
    return Packed(*made, group_size, bits, scale * codes + bias)


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    spelled = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    flat = spelled.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return np.packbits(flat, axis=-1, bitorder="little").view(np.uint32)


def error_of(y: mx.array, x: mx.array, values: np.ndarray) -> float:
    rows = np.array(x, np.float64)
    exact = rows @ values.T
    size = np.abs(rows) @ np.abs(values).T
    return float(np.max(np.abs(np.array(y, np.float64) - exact) / size, initial=0.0))


@pytest.mark.parametrize("group_size", kernels.GROUP_SIZES)
@pytest.mark.parametrize("bits", kernels.BITS)
def test_products_are_right(instructions: str, bits: int, group_size: int) -> None:
    for dtype in SCALE_DTYPES:
        matrix = packed(37, 640, bits=bits, group_size=group_size, dtype=dtype)
        x = normal(9, 640)

        assert error_of(matrix.linear(x), x, matrix.values) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 3, 40, 200])
@pytest.mark.parametrize("columns", [96, 768, 1632])
def test_an_addend_has_the_bits_of_a_sum(instructions: str, columns: int, rows: int) -> None:
    matrix, x = packed(37, columns), normal(rows, columns)
    parts = matrix.codes, matrix.scales, matrix.biases, matrix.group_size, matrix.bits

    for addend in (normal(rows, 37), normal(37, rows).T, normal(2 * rows, 37)[::2]):
        assert equal_bits(kernels.quantized_linear(x, *parts, addend=addend), matrix.linear(x) + addend)


@pytest.mark.parametrize("shape", [(3, 36), (2, 37), (1, 3, 37)])
def test_an_addend_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    matrix = packed(37, 96)
    parts = matrix.codes, matrix.scales, matrix.biases, matrix.group_size, matrix.bits

    with pytest.raises(OperandRejected) as caught:
        kernels.quantized_linear(normal(3, 96), *parts, addend=normal(*shape))

    assert caught.value.operand == "addend"


@dataclass(frozen=True)
class Case:
    """Numbers of a random product."""

    name: str
    bits: int
    group_size: int
    dtype: mx.Dtype
    groups: int
    outputs: int
    rows: int
    seed: int


CASES = st.builds(
    Case,
    name=st.sampled_from(EVERY_SET or ["none"]),
    bits=st.sampled_from(kernels.BITS),
    group_size=st.sampled_from(kernels.GROUP_SIZES),
    dtype=st.sampled_from(SCALE_DTYPES),
    groups=st.integers(1, 14),
    outputs=st.integers(0, 70),
    rows=st.integers(0, MAX_ROWS),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=150, deadline=None)
@given(CASES)
def test_products_of_any_shape_are_right(case: Case) -> None:
    kernels.choose_instruction_set(case.name)
    columns = case.groups * case.group_size
    matrix = packed(case.outputs, columns, bits=case.bits, group_size=case.group_size, dtype=case.dtype, seed=case.seed)
    x = normal(case.rows, columns, seed=case.seed)

    y = matrix.linear(x)

    assert y.shape == (case.rows, case.outputs)
    assert error_of(y, x, matrix.values) < TOLERANCE


@pytest.mark.parametrize("bits", kernels.BITS)
@pytest.mark.parametrize("columns", [96, 768, 1632])
def test_a_row_has_the_same_bits_in_any_company(instructions: str, bits: int, columns: int) -> None:
    matrix = packed(23, columns, bits=bits, dtype=mx.float16)
    x = normal(MAX_ROWS, columns)
    kernels.set_threads(1)
    alone = mx.concatenate([matrix.linear(x[row : row + 1]) for row in range(MAX_ROWS)])

    for count in range(1, MAX_ROWS + 1, 7):
        begin = (count * 31) % (MAX_ROWS - count + 1)
        kernels.set_threads(1 + count % 4)
        assert equal_bits(matrix.linear(x[begin : begin + count]), alone[begin : begin + count])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_row_has_the_same_bits_with_any_number_of_threads(instructions: str, threads: int) -> None:
    matrix = packed(1000, 576)
    x = normal(130, 576)
    kernels.set_threads(1)
    alone = matrix.linear(x)
    mx.eval(alone)
    kernels.set_threads(threads)

    assert kernels.threads() == threads
    assert equal_bits(matrix.linear(x), alone)


def test_instruction_sets_agree_but_for_rounding() -> None:
    matrix = packed(64, 1536, bits=5)
    x = normal(20, 1536)
    results: list[mx.array] = []
    for name in EVERY_SET:
        kernels.choose_instruction_set(name)
        assert kernels.instruction_set() == name
        results.append(matrix.linear(x))
        mx.eval(results)

    size = np.abs(np.array(x)) @ np.abs(matrix.values).T
    assert all(np.max(np.abs(np.array(result - results[-1])) / size) < TOLERANCE for result in results)


def test_leading_dimensions_are_kept() -> None:
    matrix = packed(5, 64)
    x = normal(2, 3, 4, 64)

    assert matrix.linear(x).shape == (2, 3, 4, 5)
    assert matrix.linear(x[0, 0, 0]).shape == (5,)
    assert equal_bits(matrix.linear(x)[1, 2, 3], matrix.linear(x[1, 2, 3]))


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
    matrix = packed(7, 96)
    x = view(normal(4, 6, 96))

    assert equal_bits(matrix.linear(x), matrix.linear(mx.contiguous(x)))


def test_nothing_gives_nothing() -> None:
    assert packed(5, 64).linear(mx.zeros((0, 64))).shape == (0, 5)
    assert packed(0, 64).linear(mx.zeros((3, 64))).shape == (3, 0)
    assert packed(5, 0).linear(mx.zeros((3, 0))).tolist() == [[0.0] * 5] * 3
    assert packed(5, 64).rows(mx.array([], mx.int32)).shape == (0, 64)
    assert packed(4, 5, 64).gather(mx.zeros((0, 64)), mx.zeros((0,), mx.uint32)).shape == (0, 5)


@pytest.mark.parametrize("bits", kernels.BITS)
def test_rows_are_looked_up(instructions: str, bits: int) -> None:
    matrix = packed(50, 832, bits=bits, group_size=64, dtype=mx.bfloat16)
    indices = np.random.default_rng(2).integers(0, 50, (3, 40))

    rows = matrix.rows(mx.array(indices.astype(np.uint16)))

    assert np.allclose(np.array(rows), matrix.values[indices], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", kernels.BITS)
def test_rows_choose_their_matrices(instructions: str, bits: int) -> None:
    experts = packed(6, 19, 96, bits=bits, dtype=mx.float16)
    choices = np.random.default_rng(3).integers(0, 6, (33, 2))
    x = normal(33, 96)

    y = experts.gather(x, mx.array(choices))

    assert y.shape == (33, 2, 19)
    for row, column in np.ndindex(*choices.shape):
        number = choices[row, column]
        chosen = Packed(
            experts.codes[number], experts.scales[number], experts.biases[number], 32, bits, experts.values[number]
        )
        assert equal_bits(y[row, column], chosen.linear(x[row]))


def test_every_choice_may_have_a_row_of_its_own() -> None:
    experts = packed(4, 10, 64)
    choices = mx.array([[3, 0], [1, 1], [2, 3]])
    x = normal(3, 2, 64)

    y = experts.gather(x, choices)

    flat = experts.gather(x.reshape(6, 64), choices.reshape(6))
    assert equal_bits(y.reshape(6, 10), flat)


def test_works_beside_other_operations_of_a_graph() -> None:
    matrix = packed(96, 96)
    x = normal(2, 96)

    y = matrix.linear(mx.maximum(matrix.linear(x * 2), 0)) + 1

    steps = np.maximum(np.array(x * 2, np.float64) @ matrix.values.T, 0) @ matrix.values.T + 1
    assert np.allclose(np.array(y), steps, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "group_size"), [(1, 32), (7, 32), (16, 64), (4, 16), (4, 256), (0, 0), (-4, 64)])
def test_an_unknown_quantization_is_refused(bits: int, group_size: int) -> None:
    matrix = packed(4, 256)

    with pytest.raises(QuantizationUnsupported) as caught:
        kernels.quantized_linear(normal(1, 256), matrix.codes, matrix.scales, matrix.biases, group_size, bits)

    assert (caught.value.bits, caught.value.group_size) == (bits, group_size)


@pytest.mark.parametrize(
    ("change", "operand"),
    [
        ({"x": mx.zeros((2, 128), mx.float16)}, "x"),
        ({"x": mx.zeros((2, 96))}, "x"),
        ({"x": mx.array(1.0)}, "x"),
        ({"codes": mx.zeros((4, 16), mx.int32)}, "codes"),
        ({"codes": mx.zeros((4, 2, 16), mx.uint32)}, "codes"),
        ({"codes": mx.zeros((4, 15), mx.uint32)}, "codes"),
        ({"codes": mx.zeros((16, 4), mx.uint32).T}, "codes"),
        ({"codes": mx.zeros((4, 32), mx.uint32)[:, ::2]}, "codes"),
        ({"scales": mx.zeros((4, 3))}, "scales"),
        ({"scales": mx.zeros((5, 4))}, "scales"),
        ({"scales": mx.zeros((4, 4), mx.int8)}, "scales"),
        ({"scales": mx.zeros((4, 4)).T}, "scales"),
        ({"biases": mx.zeros((4, 4), mx.float16)}, "biases"),
        ({"biases": mx.zeros((4, 8))}, "biases"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(change: dict[str, mx.array], operand: str) -> None:
    matrix = packed(4, 128)
    operands = {
        "x": normal(2, 128),
        "codes": matrix.codes,
        "scales": matrix.scales,
        "biases": matrix.biases,
    }

    with pytest.raises(OperandRejected, match=operand) as caught:
        mx.eval(kernels.quantized_linear(**(operands | change), group_size=32, bits=4))

    assert caught.value.operand == operand


@pytest.mark.parametrize("number", [-1, 4, 2**40])
def test_a_number_outside_is_an_error_and_no_crash(number: int) -> None:
    matrix, experts = packed(4, 64), packed(4, 4, 64)

    assert problem_of(matrix.rows(mx.array([0, number]))) == INDEX_OUTSIDE
    choices = "choices has a number that lies outside the matrix"
    assert problem_of(experts.gather(normal(2, 64), mx.array([0, number]))) == choices
    assert error_of(matrix.linear(normal(2, 64)), normal(2, 64), matrix.values) < TOLERANCE


def test_choices_must_fit_the_rows() -> None:
    experts = packed(4, 4, 64)

    with pytest.raises(OperandRejected, match="choices has not one choice"):
        experts.gather(normal(3, 64), mx.zeros((2,), mx.int32))
    with pytest.raises(OperandRejected, match="choices is not of integers"):
        experts.gather(normal(3, 64), mx.zeros((3,)))


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(InstructionSetMissing, match="mmx"):
        kernels.choose_instruction_set("mmx")

    assert kernels.instruction_set() == EVERY_SET[0]
