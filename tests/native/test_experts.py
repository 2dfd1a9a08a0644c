"""What a mixture of experts is made of: against numpy, and against the kernels of single matrices."""

import mlx.core as mx
import numpy as np
import pytest

from native import blend, dense, experts, kernels
from native.errors import OperandRejected
from native.program import Program
from tests.native.arrays import EVERY_SET, equal_bits, normal
from tests.native.test_quantized import packed

TOLERANCE = 1e-6
DTYPES = [mx.float32, mx.bfloat16, mx.float16]

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("is_of_all", [True, False])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(1, 1), (8, 3), (37, 37), (128, 8)])
def test_the_largest_logits_are_chosen(num_experts: int, num_chosen: int, is_of_all: bool) -> None:
    logits, scale = 3 * normal(2, 5, num_experts), normal(num_experts, seed=4)

    numbers, shares = experts.choose_experts(logits, num_chosen, is_of_all=is_of_all, scale=scale)

    exact = np.array(logits, np.float64)
    expected = np.argsort(-exact, axis=-1)[..., :num_chosen]
    chosen = np.take_along_axis(exact, expected, -1)
    probabilities = np.take_along_axis(softmax(exact), expected, -1) if is_of_all else softmax(chosen)
    assert numbers.dtype == mx.int32
    assert np.array_equal(np.array(numbers), expected)
    assert np.abs(np.array(shares) - probabilities * np.array(scale)[expected]).max() < TOLERANCE
    alone = experts.choose_experts(logits[1, 3], num_chosen, is_of_all=is_of_all, scale=scale)
    assert equal_bits(shares[1, 3], alone[1])


def test_the_chosen_are_those_of_a_partition() -> None:
    logits = normal(40, 64)

    numbers, _ = experts.choose_experts(logits, 6, is_of_all=True)

    partition = mx.argpartition(logits, kth=-6, axis=-1)[:, -6:]
    assert np.array_equal(np.sort(np.array(numbers), -1), np.sort(np.array(partition), -1))


def test_of_equal_logits_the_first_are_chosen() -> None:
    logits = mx.array([[1.0, 2.0, 1.0, 2.0, 1.0], [0.0] * 5])

    numbers, shares = experts.choose_experts(logits, 3, is_of_all=False)

    assert numbers.tolist() == [[1, 3, 0], [0, 1, 2]]
    assert np.abs(np.array(shares)[1] - 1 / 3).max() < TOLERANCE


def test_what_is_no_number_is_chosen_last() -> None:
    logits = mx.array([[float("nan"), 1.0, float("nan"), -float("inf")], [float("nan")] * 4])

    numbers, _ = experts.choose_experts(logits, 3, is_of_all=False)

    assert numbers.tolist() == [[1, 3, 0], [0, 1, 2]]


def test_answers_are_mixed_in_their_order() -> None:
    answers, shares = normal(2, 3, 4, 33), normal(2, 3, 4, seed=2)

    mixed = experts.mix(answers, shares)

    expected = np.zeros((2, 3, 33), np.float32)
    for rank in range(4):
        expected += np.array(answers)[..., rank, :] * np.array(shares)[..., rank, None]
    assert np.abs(np.array(mixed) - expected).max() < TOLERANCE
    assert equal_bits(mixed[1, 2], experts.mix(answers[1, 2], shares[1, 2]))
    assert equal_bits(experts.mix(answers[::-1], shares[::-1]), mixed[::-1])


@pytest.mark.parametrize("gate_width", [1, 37])
def test_a_sigmoid_gates_rows(gate_width: int) -> None:
    x, gate = normal(3, 5, 37), 4 * normal(3, 5, gate_width, seed=3)

    gated = experts.sigmoid_gate(x, gate)

    exact = np.array(x, np.float64) / (1 + np.exp(-np.array(gate, np.float64)))
    assert np.abs(np.array(gated) - exact).max() < TOLERANCE
    assert equal_bits(gated[2, 4], experts.sigmoid_gate(x[2, 4], gate[2, 4]))


@pytest.mark.parametrize("width", [7, 64, 800])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_choose_dense_matrices(dtype: mx.Dtype, width: int) -> None:
    weights = normal(5, 19, width).astype(dtype)
    choices = np.random.default_rng(3).integers(0, 5, (150, 2))
    x = normal(150, width, seed=2)

    y = experts.gather_linear(x, weights, mx.array(choices))

    mx.eval(y)
    for row, column in ((0, 0), (17, 1), (149, 1)):
        assert equal_bits(y[row, column], dense.linear(x[row], weights[int(choices[row, column])]))
    each = experts.gather_linear(mx.repeat(x[:, None], 2, axis=1), weights, mx.array(choices))
    assert equal_bits(each, y)


@pytest.mark.parametrize("is_gelu", [True, False])
def test_gated_products_have_the_bits_of_their_parts(is_gelu: bool) -> None:
    join = blend.geglu if is_gelu else kernels.swiglu
    gate, up = (normal(6, 45, 96, seed=seed).astype(mx.bfloat16) for seed in (1, 2))
    choices = mx.array(np.random.default_rng(4).integers(0, 6, (1, 70, 3)))
    x = normal(1, 70, 96)

    joined = experts.gather_gated(x, gate, up, choices, is_gelu=is_gelu)

    parts = [experts.gather_linear(x, weights, choices) for weights in (gate, up)]
    assert equal_bits(joined, join(*parts))


@pytest.mark.parametrize("is_gelu", [True, False])
@pytest.mark.parametrize("bits", kernels.BITS)
def test_gated_products_of_packed_matrices_do_too(bits: int, is_gelu: bool) -> None:
    join = blend.geglu if is_gelu else kernels.swiglu
    gate, up = (packed(6, 45, 96, bits=bits, dtype=mx.float16, seed=seed) for seed in (1, 2))
    choices = mx.array(np.random.default_rng(4).integers(0, 6, (1, 70, 3)))
    x = normal(1, 70, 96)

    joined = experts.gather_quantized_gated(
        x,
        (gate.codes, gate.scales, gate.biases),
        (up.codes, up.scales, up.biases),
        choices,
        group_size=32,
        bits=bits,
        is_gelu=is_gelu,
    )

    assert equal_bits(joined, join(gate.gather(x, choices), up.gather(x, choices)))


def test_bits_do_not_depend_on_threads_or_on_other_rows() -> None:
    gate, up = normal(4, 50, 64), normal(4, 50, 64, seed=2)
    choices = mx.array(np.random.default_rng(5).integers(0, 4, (200, 2)))
    x = normal(200, 64)
    found: list[mx.array] = []
    for threads in (1, 2, 5):
        kernels.set_threads(threads)
        found.append(experts.gather_gated(x, gate, up, choices, is_gelu=False))
        mx.eval(found[-1])
    assert equal_bits(found[0], found[1])
    assert equal_bits(found[0], found[2])
    assert equal_bits(experts.gather_gated(x[150:], gate, up, choices[150:], is_gelu=False), found[0][150:])


def test_a_mixture_can_be_recorded() -> None:
    up, down = normal(4, 16, 32), normal(4, 32, 16)

    def forward(x: mx.array) -> mx.array:
        numbers, shares = experts.choose_experts(blend.columns(x, 0, 4), 2, is_of_all=False)
        gated = experts.gather_gated(x, up, up, numbers, is_gelu=False)
        mixed = experts.mix(experts.gather_linear(gated, down, numbers), shares)
        return experts.sigmoid_gate(mixed, blend.columns(x, 0, 1))

    x = normal(1, 3, 32)
    program = Program([x], [forward(x)], [(None, "tokens", None)] * 2)
    longer = normal(1, 70, 32, seed=2)
    assert equal_bits(program([longer])[0], forward(longer))


def test_a_choice_that_is_not_there_is_a_failure() -> None:
    weights = normal(4, 8, 32)
    for choices in (mx.array([[4]]), mx.array([[-1]])):
        assert np.isnan(np.array(experts.gather_linear(normal(1, 32), weights, choices))).all()
        assert kernels.take_failure() == "choices has a number that lies outside the matrix"
        assert np.isnan(np.array(experts.gather_gated(normal(1, 32), weights, weights, choices, is_gelu=True))).all()
        assert kernels.take_failure() == "choices has a number that lies outside the matrix"


def test_operands_that_do_not_fit_are_refused() -> None:
    x, weights, choices = normal(3, 32), normal(4, 8, 32), mx.zeros((3, 2), mx.int32)
    for arguments, operand in (
        ((x.astype(mx.float16), weights, choices), "x"),
        ((x[:, :31], weights, choices), "x"),
        ((x, weights[0], choices), "weights"),
        ((x, weights.astype(mx.int32), choices), "weights"),
        ((x, mx.swapaxes(normal(4, 32, 8), 1, 2), choices), "weights"),
        ((x, weights, choices[:2]), "choices"),
        ((x, weights, choices.astype(mx.float32)), "choices"),
    ):
        with pytest.raises(OperandRejected) as caught:
            mx.eval(experts.gather_linear(*arguments))
        assert caught.value.operand == operand
    with pytest.raises(OperandRejected, match="up has not the shape of gate"):
        experts.gather_gated(x, weights, weights[:, :7], choices, is_gelu=False)
    for num_chosen in (0, 33):
        with pytest.raises(OperandRejected, match="logits has not so many columns"):
            experts.choose_experts(x, num_chosen, is_of_all=True)
    with pytest.raises(OperandRejected, match="scale has not one element for each expert"):
        experts.choose_experts(x, 2, is_of_all=True, scale=mx.zeros(31))
    with pytest.raises(OperandRejected, match="shares has not one element for each answer"):
        experts.mix(normal(3, 2, 8), normal(3, 3))
    with pytest.raises(OperandRejected, match="gate has not the shape of x"):
        experts.sigmoid_gate(x, normal(3, 2))


def test_no_rows_give_no_rows() -> None:
    none = mx.zeros((1, 0, 32))
    numbers, shares = experts.choose_experts(none, 2, is_of_all=True)
    assert numbers.shape == shares.shape == (1, 0, 2)
    assert experts.gather_linear(none, normal(4, 8, 32), numbers).shape == (1, 0, 2, 8)
    assert experts.mix(mx.zeros((1, 0, 2, 8)), shares).shape == (1, 0, 8)
