import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.step import NumericPath
from worker.sampling import SEED_MASK, Sampler, choose, keep, keep_top_p, step_key
from worker.sequence import SamplingSettings

PROBABILITIES = [0.05, 0.4, 0.15, 0.1, 0.3]


def logits(probabilities: list[float] = PROBABILITIES) -> mx.array:
    return mx.log(mx.array(probabilities)) + 3.0


def support(sampling: SamplingSettings, draws: int = 300) -> set[int]:
    """Return which tokens ever come."""
    logprobs = mx.log(mx.array(PROBABILITIES))
    return {int(np.array(choose(logprobs, sampling, step_key(1, index)))) for index in range(draws)}


def drawn(sampling: SamplingSettings, count: int = 20) -> list[int | None]:
    sampler = Sampler(sampling, ())
    return [sampler.draw(logits()).read() for _ in range(count)]


@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_no_temperature_takes_the_most_probable_before_any_filter(path: NumericPath, temperature: float):
    sampler = Sampler(SamplingSettings(temperature=temperature, top_k=1, top_p=0.01, min_p=1.0), (), path)
    assert sampler.draw(logits()[None, None]).read() == 1


def test_without_filters_every_token_can_come():
    assert support(SamplingSettings()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.01, {1}), (0.39, {1}), (0.5, {1, 4}), (0.8, {1, 4, 2}), (0.999, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, expected: set[int]):
    assert support(SamplingSettings(top_p=top_p)) == expected


@pytest.mark.parametrize("top_p", [0.0, 1.0])
def test_top_p_is_off_at_its_ends(top_p: float):
    assert support(SamplingSettings(top_p=top_p)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("min_p", "expected"), [(1.0, {1}), (0.7, {1, 4}), (0.3, {1, 4, 2})])
def test_min_p_keeps_what_is_not_much_less_probable_than_the_best(min_p: float, expected: set[int]):
    assert support(SamplingSettings(min_p=min_p)) == expected


@pytest.mark.parametrize(("top_k", "expected"), [(1, {1}), (2, {1, 4}), (5, {0, 1, 2, 3, 4}), (99, {0, 1, 2, 3, 4})])
def test_top_k_keeps_the_most_probable(top_k: int, expected: set[int]):
    assert support(SamplingSettings(top_k=top_k)) == expected


def kept_in_order(probabilities: list[float], sampling: SamplingSettings) -> set[int]:
    """Top_p, then min_p, then top_k, one after the other over the whole vocabulary."""
    order = np.argsort(probabilities, kind="stable")
    mass = np.cumsum(np.array(probabilities)[order])
    kept = {int(index) for index, below in zip(order, mass, strict=True) if below > 1 - sampling.top_p}
    kept |= {int(order[-1])}
    floor = max(probabilities) * sampling.min_p
    kept = {index for index in kept if probabilities[index] >= floor}
    return {int(index) for index in order[::-1] if int(index) in kept} & {int(i) for i in order[::-1][: sampling.top_k]}


def kept_together(probabilities: list[float], sampling: SamplingSettings) -> set[int]:
    kept, ids = keep(mx.log(mx.array(probabilities)), sampling)
    places = [index for index, logprob in enumerate(np.array(kept).tolist()) if math.isfinite(logprob)]
    return set(places) if ids is None else {int(np.array(ids)[place]) for place in places}


@given(
    st.permutations([1, 2, 3, 5, 7, 11, 13]),
    st.integers(1, 9),
    st.sampled_from([0.35, 0.6, 0.85]),
    st.sampled_from([0.0, 0.4]),
)
def test_filters_together_keep_what_they_keep_in_turn(weights: list[int], top_k: int, top_p: float, min_p: float):
    probabilities = [weight / sum(weights) for weight in weights]
    sampling = SamplingSettings(top_p=top_p, top_k=top_k, min_p=min_p)
    assert kept_together(probabilities, sampling) == kept_in_order(probabilities, sampling)


def test_each_draw_has_a_key_of_its_own():
    assert len(set(drawn(SamplingSettings(seed=5)))) > 2


def test_top_p_always_keeps_one():
    kept = np.array(keep_top_p(mx.log(mx.array([0.3, 0.3, 0.4])), 1e-9)).tolist()
    assert kept == [-math.inf, -math.inf, pytest.approx(math.log(0.4))]


def test_draws_follow_the_probabilities_at_the_temperature():
    sampling = SamplingSettings(temperature=0.5)
    logprobs = mx.log(mx.array([0.8, 0.2]))
    draws = [int(np.array(choose(logprobs, sampling, step_key(7, index)))) for index in range(2000)]
    assert sum(draws) / len(draws) == pytest.approx(0.04 / 0.68, abs=0.03)


def test_a_low_temperature_is_nearly_greedy_and_never_fails():
    assert drawn(SamplingSettings(temperature=2e-5)) == [1] * 20


def test_a_seed_repeats_its_draws_and_another_differs():
    assert drawn(SamplingSettings(seed=5)) == drawn(SamplingSettings(seed=5))
    assert drawn(SamplingSettings(seed=5)) != drawn(SamplingSettings(seed=6))


def test_keys_are_those_of_the_rule():
    assert step_key(0, 0) == 0x9E3779B97F4A7C15
    assert step_key(SEED_MASK, 1) == SEED_MASK ^ (2 * 0x9E3779B97F4A7C15 & SEED_MASK)
    assert all(0 <= step_key(seed, step) <= SEED_MASK for seed in (0, SEED_MASK) for step in (0, 10**6))


def test_draws_do_not_depend_on_the_global_generator():
    first = drawn(SamplingSettings(seed=5))
    mx.random.seed(99)
    mx.eval(mx.random.normal((3,)))
    assert drawn(SamplingSettings(seed=5)) == first


def test_a_mask_lets_only_some_come():
    sampler = Sampler(SamplingSettings(), ())
    mask = [True, False, False, False, False]
    assert {sampler.draw(logits(), mask).read() for _ in range(20)} == {0}


def test_processors_come_before_the_mask():
    sampler = Sampler(SamplingSettings(temperature=0.0, logit_bias={1: -50.0}), ())
    assert sampler.draw(logits(), [True, True, True, True, False]).read() == 2


@pytest.mark.parametrize("path", list(NumericPath))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_give_no_token(path: NumericPath, temperature: float, bad: float):
    sampler = Sampler(SamplingSettings(temperature=temperature), (), path)
    assert sampler.draw(mx.array([0.0, bad, 1.0])).read() is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_lets_none_come_gives_no_token(temperature: float):
    assert Sampler(SamplingSettings(temperature=temperature), ()).draw(logits(), [False] * 5).read() is None


def test_penalties_see_accepted_tokens():
    sampler = Sampler(SamplingSettings(temperature=0.0, presence_penalty=2.0), ())
    first = sampler.draw(logits()).read()
    assert first == 1
    sampler.add(first)
    assert sampler.draw(logits()).read() == 4
