import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from models.step import NumericPath
from native import kernels
from tests.support.draw_reference import Rule, expected_token, random_logits, random_rule
from worker import draws
from worker.masks import packed
from worker.sampling import SEED_MASK, Draw, Drawer, DrawOrderError, DrawPlan, Sampler, uniforms
from worker.sequence import Drawn, SamplingSettings

PROBABILITIES = [0.05, 0.4, 0.15, 0.1, 0.3]
NATIVE = [False, True] if kernels.is_available() else [False]
EVERY_FILTER = ["", "top_p", "min_p", "xtc_threshold", "top_k", "top_p min_p xtc_threshold top_k"]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


@pytest.fixture(params=NATIVE, ids=lambda is_native: "native" if is_native else "stock")
def drawer(request: pytest.FixtureRequest) -> Drawer:
    return Drawer(NumericPath.FAST, is_native=request.param)


def logits(probabilities: Sequence[float] = PROBABILITIES, rows: int = 1) -> mx.array:
    return mx.log(mx.array([list(probabilities)] * rows)) + 3.0


def tokens_of(draw: Draw) -> list[int | None]:
    return [None if row is None else row.token_id for row in draw.read()]


def told(draw: Draw) -> list[Drawn]:
    """Return what was drawn where every row has a token."""
    return [row for row in draw.read() if row is not None]


def drawn(
    drawer: Drawer, sampling: SamplingSettings, count: int = 20, probabilities: Sequence[float] = PROBABILITIES
) -> list[int | None]:
    """Draw one token after the other, which for a plain sampler is as if all came at once."""
    plans = [DrawPlan(Sampler(sampling, ()), ahead=place) for place in range(count)]
    return tokens_of(drawer.draw(logits(probabilities, count), plans))


def support(drawer: Drawer, sampling: SamplingSettings, draws: int = 300) -> set[int | None]:
    """Return which tokens ever come."""
    return set(drawn(drawer, sampling, draws))


# What a draw is.


@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_no_temperature_takes_the_most_probable_before_any_filter(path: NumericPath, temperature: float):
    sampler = Sampler(SamplingSettings(temperature=temperature, top_k=1, top_p=0.01, min_p=1.0), ())
    assert tokens_of(Drawer(path, is_native=False).draw(logits(), [DrawPlan(sampler)])) == [1]


def test_the_first_of_equals_is_the_most_probable(drawer: Drawer):
    found = drawer.draw(mx.array([[0.0, 2.0, 1.0, 2.0]]), [DrawPlan(Sampler(SamplingSettings(temperature=0.0), ()))])
    assert tokens_of(found) == [1]


def test_without_filters_every_token_can_come(drawer: Drawer):
    assert support(drawer, SamplingSettings()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.01, {1}), (0.39, {1}), (0.5, {1, 4}), (0.8, {1, 4, 2}), (0.999, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_fewest_that_reach_it(drawer: Drawer, top_p: float, expected: set[int]):
    assert support(drawer, SamplingSettings(top_p=top_p)) == expected


@pytest.mark.parametrize("top_p", [0.0, 1.0])
def test_top_p_is_off_at_its_ends(drawer: Drawer, top_p: float):
    assert support(drawer, SamplingSettings(top_p=top_p)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("min_p", "expected"), [(1.0, {1}), (0.7, {1, 4}), (0.3, {1, 4, 2})])
def test_min_p_keeps_what_is_not_much_less_probable_than_the_best(drawer: Drawer, min_p: float, expected: set[int]):
    assert support(drawer, SamplingSettings(min_p=min_p)) == expected


@pytest.mark.parametrize(("top_k", "expected"), [(1, {1}), (2, {1, 4}), (5, {0, 1, 2, 3, 4}), (99, {0, 1, 2, 3, 4})])
def test_top_k_keeps_the_most_probable(drawer: Drawer, top_k: int, expected: set[int]):
    assert support(drawer, SamplingSettings(top_k=top_k)) == expected


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.1, {0, 2, 3}), (0.2, {0, 2, 3, 4}), (0.35, {0, 1, 2, 3, 4}), (0.5, {0, 1, 2, 3, 4})]
)
def test_xtc_leaves_the_least_probable_of_the_likely(drawer: Drawer, threshold: float, expected: set[int]):
    sampling = SamplingSettings(xtc_probability=1.0, xtc_threshold=threshold + 1e-4)
    assert support(drawer, sampling) == expected


def test_xtc_happens_as_often_as_asked(drawer: Drawer):
    sampling = SamplingSettings(xtc_probability=0.25, xtc_threshold=0.1, top_k=1)
    counts = Counter(drawn(drawer, sampling, 4000))
    assert set(counts) == {1, 2}  # the best where nothing is removed, else the least probable of the likely ones
    assert counts[2] / 4000 == pytest.approx(0.25, abs=0.03)


def test_xtc_never_removes_the_exempt(drawer: Drawer):
    sampling = SamplingSettings(xtc_probability=1.0, xtc_threshold=0.1)
    plans = [DrawPlan(Sampler(sampling, (), exempt_ids=frozenset({1})), ahead=place) for place in range(300)]
    assert set(tokens_of(drawer.draw(logits(rows=300), plans))) == {0, 1, 2, 3}


def test_filters_run_in_their_order(drawer: Drawer):
    # top_p leaves 1, 4 and 2; of these XTC leaves 2, so that top_k has nothing else to keep.
    sampling = SamplingSettings(top_p=0.8, xtc_probability=1.0, xtc_threshold=0.12, top_k=2)
    assert support(drawer, sampling) == {2}


@pytest.mark.parametrize("filters", EVERY_FILTER)
@pytest.mark.parametrize("width", [3, 300])
def test_stock_operations_draw_what_float64_draws(width: int, filters: str):
    generator = np.random.default_rng(width)
    rows = random_logits(generator, 100, width)
    rules = [random_rule(generator, width, filters=filters) for _ in range(100)]
    choices = np.array([rule.choice() for rule in rules], np.float32)

    tokens, _ = draws.draw(mx.array(rows), choices, np.array([rule.exempt_ids for rule in rules], np.int32))

    expected = [expected_token(row, rule) for row, rule in zip(rows, rules, strict=True)]
    differing = [row for row, token in enumerate(np.array(tokens).tolist()) if token != expected[row].token]
    assert all(expected[row].is_close for row in differing)
    assert len(differing) <= 3


def test_the_oracle_sees_a_wrong_filter():
    generator = np.random.default_rng(1)
    rows = random_logits(generator, 100, 300)
    rules = [random_rule(generator, 300, filters="top_p min_p") for _ in range(100)]
    wrong = [replace(rule, top_p=rule.top_p * 0.98) for rule in rules]
    found = [expected_token(row, rule).token for row, rule in zip(rows, wrong, strict=True)]
    expected = [expected_token(row, rule) for row, rule in zip(rows, rules, strict=True)]
    assert any(token != right.token and not right.is_close for token, right in zip(found, expected, strict=True))


@pytest.mark.skipif(NATIVE == [False], reason="built without the native extension")
@pytest.mark.parametrize("filters", EVERY_FILTER)
def test_native_and_stock_draws_agree(filters: str):
    generator = np.random.default_rng(11)
    rows = random_logits(generator, 200, 500)
    rules = [random_rule(generator, 500, filters=filters) for _ in range(200)]
    samplings = [settings_of(rule, seed) for seed, rule in enumerate(rules)]

    found = [
        tokens_of(Drawer(NumericPath.FAST, is_native=is_native).draw(mx.array(rows), plans))
        for is_native in (False, True)
        for plans in [[DrawPlan(Sampler(sampling, ())) for sampling in samplings]]
    ]

    assert sum(left != right for left, right in zip(*found, strict=True)) <= 3


def settings_of(rule: Rule, seed: int) -> SamplingSettings:
    has_xtc = rule.xtc_threshold < 0.5
    return SamplingSettings(
        temperature=rule.temperature,
        top_p=rule.top_p,
        top_k=rule.top_k,
        min_p=rule.min_p,
        xtc_probability=float(has_xtc),
        xtc_threshold=rule.xtc_threshold,
        seed=seed,
    )


CHI_SQUARE_LIMITS = {2: 18.4, 4: 23.5}  # by degrees of freedom: exceeded once in ten thousand


@pytest.mark.parametrize("seed", [7, 2**63 + 1])
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingSettings(), PROBABILITIES),
        (SamplingSettings(temperature=0.5), [p**2 for p in PROBABILITIES]),
        (SamplingSettings(temperature=2.0, top_k=3), [0, 0.4**0.5, 0.15**0.5, 0, 0.3**0.5]),
        (SamplingSettings(top_p=0.8), [0, 0.4, 0.15, 0, 0.3]),
        (SamplingSettings(xtc_probability=1.0, xtc_threshold=0.11), [0.05, 0, 0.15, 0.1, 0]),
        (
            SamplingSettings(xtc_probability=0.5, xtc_threshold=0.2),  # every other draw leaves out the best
            [0.5 * p + 0.5 * (p / 0.6) * (p != 0.4) for p in PROBABILITIES],
        ),
    ],
)
def test_draws_follow_the_probabilities(drawer: Drawer, sampling: SamplingSettings, expected: list[float], seed: int):
    counts = Counter(drawn(drawer, replace(sampling, seed=seed), 4000))
    parts = {token: weight / sum(expected) for token, weight in enumerate(expected) if weight}
    assert set(counts) == set(parts)
    chi_square = sum((counts[token] - 4000 * part) ** 2 / (4000 * part) for token, part in parts.items())
    assert chi_square < CHI_SQUARE_LIMITS[len(parts) - 1]


def test_a_low_temperature_is_nearly_greedy_and_never_fails(drawer: Drawer):
    assert drawn(drawer, SamplingSettings(temperature=2e-5)) == [1] * 20
    far = SamplingSettings(temperature=2e-5, xtc_probability=1.0, xtc_threshold=0.11)
    assert drawn(drawer, far) == [2] * 20  # the most probable of what is left, far below the best


# Seeds.


def test_a_seed_repeats_its_draws_and_another_differs(drawer: Drawer):
    assert drawn(drawer, SamplingSettings(seed=5)) == drawn(drawer, SamplingSettings(seed=5))
    assert drawn(drawer, SamplingSettings(seed=5)) != drawn(drawer, SamplingSettings(seed=6))


def test_the_random_numbers_are_those_of_the_rule():
    mixed = 0xE220A8397B1DCDAF  # the first output of SplitMix64 from the state 0
    assert uniforms(0, 0) == ((mixed >> 16 & 0xFFFFFF) / 2**24, (mixed >> 40) / 2**24)
    assert uniforms(SEED_MASK, 3) == uniforms(SEED_MASK, 3)
    assert all(0 <= part < 1 for seed in (0, SEED_MASK) for step in (0, 10**6) for part in uniforms(seed, step))


def test_the_random_numbers_are_even_and_independent():
    pairs = np.array([uniforms(seed, step) for seed in range(40) for step in range(100)])
    assert np.abs(pairs.mean(0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(pairs.T)[0, 1]) < 0.05
    assert np.abs(np.corrcoef(pairs[:-1, 1], pairs[1:, 1])[0, 1]) < 0.05


def test_draws_do_not_depend_on_the_global_generator(drawer: Drawer):
    first = drawn(drawer, SamplingSettings(seed=5))
    mx.random.seed(99)
    mx.eval(mx.random.normal((3,)))
    assert drawn(drawer, SamplingSettings(seed=5)) == first


def test_tokens_drawn_ahead_are_those_drawn_in_turn(drawer: Drawer):
    sampler = Sampler(SamplingSettings(seed=5), ())
    in_turn: list[int] = []
    for _ in range(10):
        token = told(drawer.draw(logits(), [DrawPlan(sampler)]))[0].token_id
        in_turn.append(token)
        sampler.add(token)
    assert sampler.is_plain
    assert drawn(drawer, SamplingSettings(seed=5), 10) == in_turn


def test_nothing_is_drawn_ahead_of_penalties(drawer: Drawer):
    sampler = Sampler(SamplingSettings(presence_penalty=1.0), ())
    assert not sampler.is_plain
    with pytest.raises(DrawOrderError):
        drawer.draw(logits(), [DrawPlan(sampler, ahead=1)])


# What comes before the draw.


def test_a_mask_lets_only_some_come(drawer: Drawer):
    free, bound = Sampler(SamplingSettings(), ()), Sampler(SamplingSettings(), ())
    mask = packed(np.array([False, False, False, True]))  # and none beyond its end
    rows = [tokens_of(drawer.draw(logits(rows=2), [DrawPlan(free), DrawPlan(bound, mask=mask)])) for _ in range(5)]
    assert {bound for _, bound in rows} == {3}
    assert {free for free, _ in rows} == {drawn(drawer, SamplingSettings(), 1)[0]}


def test_processors_come_before_the_mask(drawer: Drawer):
    sampler = Sampler(SamplingSettings(temperature=0.0, logit_bias={1: -50.0}), ())
    assert tokens_of(drawer.draw(logits(), [DrawPlan(sampler, mask=packed(np.arange(5) < 4))])) == [2]


def test_penalties_see_accepted_tokens(drawer: Drawer):
    sampler = Sampler(SamplingSettings(temperature=0.0, presence_penalty=2.0), ())
    assert tokens_of(drawer.draw(logits(), [DrawPlan(sampler)])) == [1]
    sampler.add(1)
    assert tokens_of(drawer.draw(logits(), [DrawPlan(sampler)])) == [4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_that_ends_comes_too_early(drawer: Drawer, temperature: float):
    ends = frozenset({1, 4})
    plans: list[DrawPlan] = []
    for seed in range(40):
        sampler = Sampler(SamplingSettings(temperature=temperature, seed=seed), (), min_tokens=3, end_ids=ends)
        sampler.add(0)
        plans += [DrawPlan(sampler, ahead=ahead) for ahead in (0, 1, 2)]
    found = tokens_of(drawer.draw(logits(rows=120), plans))
    assert not set(found[0::3] + found[1::3]) & {1, 4}
    assert 1 in found[2::3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_hurt_only_their_row(drawer: Drawer, temperature: float, bad: float):
    rows = np.array(logits(rows=3))
    plans = [
        DrawPlan(Sampler(SamplingSettings(temperature=temperature, top_p=0.9, seed=seed), ())) for seed in range(3)
    ]
    whole = tokens_of(drawer.draw(mx.array(rows), plans))
    rows[1, 3] = bad
    found = drawer.draw(mx.array(rows), plans)
    assert tokens_of(found) == [whole[0], None, whole[2]]
    assert np.array(found.tokens).max() < 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_lets_none_come_gives_no_token(drawer: Drawer, temperature: float):
    plan = DrawPlan(
        Sampler(SamplingSettings(temperature=temperature), (), top_logprobs=2), mask=packed(np.zeros(5, dtype=bool))
    )
    assert drawer.draw(logits(), [plan]).read() == [None]


# Log-probabilities.


def test_log_probabilities_are_of_the_distribution_before_filters(drawer: Drawer):
    rows = np.random.default_rng(2).normal(0, 3, (3, 1000)).astype(np.float32)
    sampling = SamplingSettings(temperature=0.7, top_k=2, logit_bias={17: 4.0})
    counts = [20, None, 0]
    plans = [DrawPlan(Sampler(replace(sampling, seed=seed), (), top_logprobs=n)) for seed, n in enumerate(counts)]

    first, second, third = told(drawer.draw(mx.array(rows), plans))

    wide = rows.astype(np.float64)
    wide[:, 17] += 4.0
    exact = wide - np.log(np.sum(np.exp(wide), -1, keepdims=True))
    best = np.argsort(-exact[0], kind="stable")[:20].tolist()
    assert [token for token, _ in first.alternatives] == best
    assert np.allclose([logprob for _, logprob in first.alternatives], exact[0][best], atol=1e-5)
    assert first.logprob == pytest.approx(exact[0][first.token_id], abs=1e-5)
    assert (second.logprob, second.alternatives) == (None, ())
    assert third.logprob == pytest.approx(exact[2][third.token_id], abs=1e-5)
    assert third.alternatives == ()


def test_alternatives_are_tokens_that_may_come(drawer: Drawer):
    plan = DrawPlan(
        Sampler(SamplingSettings(temperature=0.0), (), top_logprobs=20), mask=packed(np.array([True, False, True]))
    )
    found = told(drawer.draw(logits(), [plan]))[0]
    assert found.alternatives == ((2, pytest.approx(math.log(0.75))), (0, pytest.approx(math.log(0.25))))
    assert found.logprob == found.alternatives[0][1]


# The reference path.


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_reference_path_takes_what_mlx_lm_takes(dtype: mx.Dtype):
    rows = mx.array(np.random.default_rng(4).normal(0, 0.1, (64, 1, 400)).astype(np.float32)).astype(dtype)
    plan = DrawPlan(Sampler(SamplingSettings(temperature=0.0), ()))
    drawer = Drawer(NumericPath.REFERENCE, is_native=False)

    found = [told(drawer.draw(row, [plan]))[0].token_id for row in rows]

    expected = [mx.argmax(row - mx.logsumexp(row, keepdims=True), axis=-1).item() for row in rows]
    assert found == expected
    best = np.array(mx.argmax(rows[:, 0], axis=-1)).tolist()
    assert (found != best) == (dtype != mx.float32)  # log-probabilities of halves have equals that logits have not


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_reference_path_draws_as_well(dtype: mx.Dtype):
    drawer = Drawer(NumericPath.REFERENCE, is_native=False)
    plans = [DrawPlan(Sampler(SamplingSettings(top_k=2), (), top_logprobs=1), ahead=place) for place in range(100)]
    found = told(drawer.draw(logits(rows=100).astype(dtype), plans))
    assert {row.token_id for row in found} == {1, 4}
    assert found[0].alternatives == ((1, pytest.approx(math.log(0.4), abs=0.01)),)
