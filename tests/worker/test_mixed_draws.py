"""Rows drawn together are as if each were alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from models.step import NumericPath
from native import kernels
from worker.masks import packed
from worker.sampling import SEED_MASK, Draw, Drawer, DrawPlan, Sampler
from worker.sequence import Drawn, SamplingSettings

VOCABULARY = 50
NATIVE = [False, True] if kernels.is_available() else [False]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


@pytest.fixture(params=NATIVE, ids=lambda is_native: "native" if is_native else "stock")
def drawer(request: pytest.FixtureRequest) -> Drawer:
    return Drawer(NumericPath.FAST, is_native=request.param)


@dataclass(frozen=True)
class Member:
    """A sequence: when it joins, how many tokens it wants, and how they are drawn."""

    sampling: SamplingSettings
    joins_at: int
    num_tokens: int
    top_logprobs: int | None = None
    has_mask: bool = False

    def sampler(self) -> Sampler:
        ends, exempt = frozenset({0, 1}), frozenset({2})
        prompt = tuple(range(self.sampling.seed % 9))
        return Sampler(
            self.sampling, prompt, min_tokens=2, end_ids=ends, exempt_ids=exempt, top_logprobs=self.top_logprobs
        )


def logits_after(member: Member, tokens: list[int]) -> np.ndarray:
    """Stand in for a model: what follows depends on the sequence alone."""
    generator = np.random.default_rng([member.sampling.seed, *tokens[-3:], len(tokens)])
    return generator.normal(0, 2, VOCABULARY).astype(np.float32)


def run(draw: Callable[[mx.array, list[DrawPlan]], Draw], members: Sequence[Member]) -> list[list[Drawn]]:
    """Draw all members' tokens, those of a step together; return what was read of each."""
    samplers, tokens = [member.sampler() for member in members], [list[int]() for _ in members]
    found: list[list[Drawn]] = [[] for _ in members]
    mask = packed(np.arange(VOCABULARY) % 3 > 0)
    step = 0
    while any(len(own) < member.num_tokens for own, member in zip(tokens, members, strict=True)):
        going = [i for i, m in enumerate(members) if m.joins_at <= step and len(tokens[i]) < m.num_tokens]
        step += 1
        if not going:
            continue
        rows = mx.array(np.stack([logits_after(members[i], tokens[i]) for i in going]))
        plans = [DrawPlan(samplers[i], mask=mask if members[i].has_mask else None) for i in going]
        for i, row in zip(going, draw(rows, plans).read(), strict=True):
            assert row is not None
            samplers[i].add(row.token_id)
            tokens[i].append(row.token_id)
            found[i].append(row)
    return found


def check_isolation(draw: Callable[[mx.array, list[DrawPlan]], Draw], members: Sequence[Member]) -> None:
    together = run(draw, members)
    for member, rows in zip(members, together, strict=True):
        assert run(draw, [replace(member, joins_at=0)])[0] == rows


SAMPLINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    penalty_window=st.sampled_from([0, 4]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, SEED_MASK),
    logit_bias=st.sampled_from([{}, {3: 2.0}, {VOCABULARY - 1: 5.0, 0: -5.0}]),
)
MEMBERS = st.builds(
    Member,
    sampling=SAMPLINGS,
    joins_at=st.integers(0, 4),
    num_tokens=st.integers(1, 4),
    top_logprobs=st.sampled_from([None, 0, 3]),
    has_mask=st.booleans(),
)
MIXES = st.lists(MEMBERS, min_size=1, max_size=4)


@pytest.mark.parametrize("is_native", NATIVE)
def test_every_row_of_a_mix_is_as_if_alone(is_native: bool):
    drawer = Drawer(NumericPath.FAST, is_native=is_native)

    @settings(max_examples=200)
    @given(MIXES)
    def check(members: list[Member]) -> None:
        check_isolation(drawer.draw, members)

    check()


def test_a_setting_that_leaks_into_the_next_row_is_caught():
    drawer = Drawer(NumericPath.FAST, is_native=False)

    def leak(rows: mx.array, plans: list[DrawPlan]) -> Draw:
        return drawer.draw(rows, [replace(plan, mask=plans[0].mask) for plan in plans])

    @settings(max_examples=200, phases=[Phase.generate])
    @given(MIXES)
    def check(members: list[Member]) -> None:
        check_isolation(leak, members)

    with pytest.raises(AssertionError):
        check()


PLAIN = Member(SamplingSettings(temperature=0.0, seed=1), 0, 12)
PENALIZED = Member(SamplingSettings(temperature=0.0, seed=2, repetition_penalty=1.1), 0, 8)
FORCED = Member(SamplingSettings(temperature=0.0, seed=3, logit_bias={7: 100.0}), 0, 8)


@pytest.mark.parametrize("other", [PENALIZED, FORCED])
@pytest.mark.parametrize(
    ("joins_at", "num_plain"), [(1, 12), (12, 12), (20, 12), (3, 5)], ids=["while", "after", "later", "outlives"]
)
def test_processors_never_act_on_another_row(drawer: Drawer, other: Member, joins_at: int, num_plain: int):
    members = [replace(PLAIN, num_tokens=num_plain), replace(other, joins_at=joins_at), replace(FORCED, joins_at=2)]
    check_isolation(drawer.draw, members)


def test_processors_act_on_every_step_of_their_row(drawer: Drawer):
    plain, forced = run(drawer.draw, [PLAIN, replace(FORCED, joins_at=4)])
    assert {row.token_id for row in forced} == {7}
    assert {row.token_id for row in plain} != {7}
