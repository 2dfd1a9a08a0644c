"""Draws by the native kernel: against float64 and against themselves in other company."""

import mlx.core as mx
import numpy as np
import pytest

from native import kernels, sampling
from native.errors import OperandRejected
from tests.native.arrays import EVERY_SET
from tests.support.draw_reference import Rule, expected_token, random_logits, random_rule

EVERY_FILTER = ["", "top_p", "min_p", "xtc_threshold", "top_k", "top_p xtc_threshold top_k", "top_p min_p top_k"]

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


def drawn(logits: np.ndarray, rules: list[Rule], *, needs_normalizer: bool = False) -> tuple[list[int], np.ndarray]:
    choices = np.array([rule.choice(needs_normalizer=needs_normalizer) for rule in rules], np.float32)
    exempt_ids = np.full((len(rules), 3), -1, np.int32)
    for row, rule in zip(exempt_ids, rules, strict=True):
        row[: len(rule.exempt_ids)] = rule.exempt_ids
    tokens, normalizers = sampling.draw(mx.array(logits), mx.array(choices), mx.array(exempt_ids))
    return np.array(tokens).tolist(), np.array(normalizers)


@pytest.mark.parametrize("filters", EVERY_FILTER)
@pytest.mark.parametrize("width", [1, 7, 64, 65, 1000])
def test_tokens_are_those_of_float64(width: int, filters: str) -> None:
    generator = np.random.default_rng(width)
    logits = random_logits(generator, 100, width)
    rules = [random_rule(generator, width, filters=filters) for _ in range(100)]

    tokens, _ = drawn(logits, rules)

    expected = [expected_token(row, rule) for row, rule in zip(logits, rules, strict=True)]
    differing = [row for row, token in enumerate(tokens) if token != expected[row].token]
    assert all(expected[row].is_close for row in differing)
    assert len(differing) <= 3


def test_flat_rows_are_filtered_as_well() -> None:
    logits = np.stack([np.zeros(20000, np.float32), np.linspace(1, 0, 20000, dtype=np.float32)])
    rules = [Rule(top_p=0.5, uniform=0.75), Rule(top_p=0.25, top_k=19000, uniform=0.999999)]

    tokens, _ = drawn(logits, rules)

    expected = [expected_token(row, rule).token for row, rule in zip(logits, rules, strict=True)]
    assert np.abs(np.array(tokens) - expected).max() <= 1  # steps of the mass are as small as its rounding


def test_a_row_is_the_same_in_any_company_and_with_any_threads() -> None:
    generator = np.random.default_rng(3)
    logits = random_logits(generator, 24, 20000)
    rules = [random_rule(generator, 20000, filters=filters) for filters in (EVERY_FILTER * 4)[:24]]
    kernels.set_threads(1)
    alone = [drawn(logits[row : row + 1], [rules[row]], needs_normalizer=True) for row in range(24)]

    for threads in (1, 2, 5):
        kernels.set_threads(threads)
        for rows in (list(range(24)), list(range(23, -1, -1)), list(range(3, 24, 5))):
            tokens, normalizers = drawn(logits[rows], [rules[row] for row in rows], needs_normalizer=True)
            assert tokens == [alone[row][0][0] for row in rows]
            assert np.array_equal(normalizers, np.concatenate([alone[row][1] for row in rows]))


def test_the_normalizer_is_the_logarithm_of_the_sum() -> None:
    logits = np.random.default_rng(5).normal(3, 4, (5, 777)).astype(np.float32)

    _, normalizers = drawn(logits, [Rule(temperature=0.0)] * 5, needs_normalizer=True)

    exact = np.log(np.sum(np.exp(logits.astype(np.float64)), -1))
    assert np.allclose(normalizers, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("place", [0, 5, 63, 64, 99])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_holds_no_number_says_so_and_hurts_no_other(bad: float, place: int) -> None:
    logits = np.random.default_rng(6).standard_normal((3, 100)).astype(np.float32)
    rules = [Rule(uniform=0.4, top_p=0.9, exempt_ids=(1,))] * 3
    whole, _ = drawn(logits, rules)

    logits[1, place] = bad
    logits[1, (place + 1) % 100] = -np.inf
    tokens, normalizers = drawn(logits, rules)

    assert not np.isfinite(normalizers[1])
    assert np.isfinite(normalizers[[0, 2]]).all()
    assert tokens == [whole[0], 0, whole[2]]


def test_a_row_without_any_allowed_says_so() -> None:
    tokens, normalizers = drawn(np.full((1, 70), -np.inf, np.float32), [Rule()])
    assert (tokens, normalizers.tolist()) == ([0], [-np.inf])


@pytest.mark.parametrize("width", [3, 64, 65, 200])
def test_the_first_of_equals_is_the_most_probable(width: int) -> None:
    logits = np.zeros((1, width), np.float32)
    logits[0, [width // 2, width - 1]] = 1.0

    assert drawn(logits, [Rule(temperature=0.0)])[0] == [width // 2]
    assert drawn(logits, [Rule(top_k=1, uniform=0.99)])[0] == [width // 2]


def test_tokens_of_no_weight_are_never_drawn() -> None:
    logits = np.full((2, 100), -np.inf, np.float32)
    logits[:, 40] = logits[:, 70] = [3.0, -1e30]

    tokens, _ = drawn(logits, [Rule(uniform=0.0), Rule(uniform=1 - 2**-24)])

    assert tokens == [40, 70]


@pytest.mark.parametrize(("width", "count"), [(1, 1), (50, 50), (64, 3), (1000, 20), (5000, 20)])
def test_the_largest_are_found_in_order(width: int, count: int) -> None:
    logits = random_logits(np.random.default_rng(width), 20, width)

    ids, values = sampling.top(mx.array(logits), count)

    order = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    assert np.array_equal(np.array(ids), order)
    assert np.array_equal(np.array(values), np.take_along_axis(logits, order, -1))


def test_rows_may_lie_apart() -> None:
    logits = random_logits(np.random.default_rng(8), 6, 90)
    rules = [Rule(uniform=0.3)] * 3
    choices = mx.array(np.array([rule.choice() for rule in rules], np.float32))
    exempt_ids = mx.zeros((3, 0), mx.int32)

    apart, _ = sampling.draw(mx.array(logits)[::2], choices, exempt_ids)

    assert np.array(apart).tolist() == drawn(logits[::2], rules)[0]
    columns = mx.array(np.ascontiguousarray(logits.T)).T[:3]
    with pytest.raises(OperandRejected, match="side by side"):
        mx.eval(sampling.draw(columns, choices, exempt_ids))


def test_no_rows_are_drawn_at_once() -> None:
    tokens, normalizers = sampling.draw(mx.zeros((0, 9)), mx.zeros((0, 7)), mx.zeros((0, 0), mx.int32))
    assert (tokens.shape, normalizers.shape) == ((0,), (0,))


def test_arrays_that_do_not_fit_are_refused() -> None:
    logits, choices, exempt_ids = mx.zeros((2, 9)), mx.zeros((2, 7)), mx.zeros((2, 1), mx.int32)
    refused = {
        "logits": [
            lambda: sampling.draw(logits.astype(mx.float16), choices, exempt_ids),
            lambda: sampling.draw(logits[0], choices, exempt_ids),
            lambda: sampling.top(mx.zeros((2, 0)), 1),
        ],
        "choices": [
            lambda: sampling.draw(logits, choices[:1], exempt_ids),
            lambda: sampling.draw(logits, choices[:, :6], exempt_ids),
            lambda: sampling.draw(logits, choices.astype(mx.float16), exempt_ids),
            lambda: mx.eval(sampling.draw(logits, mx.zeros((7, 2)).T, exempt_ids)),
        ],
        "exempt_ids": [
            lambda: sampling.draw(logits, choices, exempt_ids[:1]),
            lambda: sampling.draw(logits, choices, exempt_ids.astype(mx.uint32)),
        ],
        "count": [lambda: sampling.top(logits, 0), lambda: sampling.top(logits, 10)],
    }

    for operand, calls in refused.items():
        for call in calls:
            with pytest.raises(OperandRejected) as caught:
                call()
            assert caught.value.operand == operand


@pytest.mark.parametrize("width", [1, 31, 32, 33, 1000])
def test_masks_forbid_all_but_what_their_bits_allow(width: int) -> None:
    generator = np.random.default_rng(width)
    logits = mx.array(generator.normal(0, 1, (5, width)).astype(np.float32))
    words = generator.integers(0, 2**32, (5, (width + 31) // 32), dtype=np.uint32)
    words[0], words[1] = 0, 0xFFFFFFFF

    found = np.array(sampling.restrict(logits, mx.array(words)))

    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :width].astype(bool)
    assert np.array_equal(found, np.where(allowed, np.array(logits), -np.inf))


def test_nothing_behind_the_words_of_a_mask_is_allowed() -> None:
    found = np.array(sampling.restrict(mx.zeros((1, 70)), mx.array([[0xFFFFFFFF]], dtype=mx.uint32)))

    assert np.isfinite(found[0]).tolist() == [True] * 32 + [False] * 38


@pytest.mark.parametrize("masks", [mx.zeros((2, 1), mx.uint32), mx.zeros((1, 1), mx.int32), mx.zeros((1,), mx.uint32)])
def test_masks_that_do_not_fit_are_refused(masks: mx.array) -> None:
    with pytest.raises(OperandRejected, match="masks"):
        sampling.restrict(mx.zeros((1, 5)), masks)
