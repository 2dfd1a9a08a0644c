"""Guesses change how fast tokens come and nothing else."""

from dataclasses import replace

import pytest

from models.registry import LoadedModel
from tests.worker.constraining import Anything
from tests.worker.text_driving import Driven
from tests.worker.text_engines import finish_of, request, tokens_of
from tests.worker.text_mixes import LETTERS, outputs
from tests.worker.text_models import Models
from worker.events import Completed, FinishReason, Usage
from worker.sequence import SamplingSettings, StoppingSettings, TextRequest

# A few letters over and over, so that what was said before is a good guess.
BIAS = dict.fromkeys(LETTERS, 40.0)
GREEDY = SamplingSettings(temperature=0.0, logit_bias=BIAS)
SEEDED = SamplingSettings(seed=5, temperature=0.4, logit_bias=BIAS)
PROMPT = "abababab"


def wanted(sampling: SamplingSettings, max_draft_tokens: int = 10, max_tokens: int = 60) -> TextRequest:
    return request(
        prompt=PROMPT,
        max_tokens=max_tokens,
        sampling=sampling,
        token_details=True,
        top_logprobs=2,
        max_draft_tokens=max_draft_tokens,
    )


def usage_of(driven: Driven, key: str = "r1") -> Usage:
    last = driven.events[key][-1]
    assert isinstance(last, Completed)
    return last.usage


@pytest.mark.parametrize("kind", ["plain", "8", "turbo", "rows"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_tokens_are_the_same_and_come_in_fewer_steps(models: Models, kind: str, sampling: SamplingSettings):
    plain, guessing = Driven(models(kind)), Driven(models(kind))
    expected = plain.generate(wanted(sampling, 0))
    found = guessing.generate(wanted(sampling))
    assert outputs(found) == outputs(expected)
    assert len(guessing.plans) < len(plain.plans)


def test_log_probabilities_are_the_same(loaded: LoadedModel):
    plain, guessing = Driven(loaded), Driven(loaded)
    details = [
        [token for event in driven.generate(wanted(SEEDED, guesses)) for token in getattr(event, "tokens", ())]
        for driven, guesses in ((plain, 0), (guessing, 10))
    ]
    assert details[0] == details[1]


def test_what_was_guessed_and_what_was_right_is_told(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.generate(wanted(GREEDY))
    usage, counts = usage_of(driven), driven.workload.counts()
    assert usage.drafted_tokens >= usage.accepted_draft_tokens > 0
    # Each step but the prompt's gives one token, and one more for each guess that was right.
    assert usage.completion_tokens == 60 == len(driven.plans) - 1 + usage.accepted_draft_tokens
    assert counts.drafted_tokens_total == usage.drafted_tokens
    assert counts.accepted_draft_tokens_total == usage.accepted_draft_tokens
    driven.assert_nothing_is_held()


def test_nothing_is_guessed_unasked(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.generate(wanted(GREEDY, 0))
    assert (usage_of(driven).drafted_tokens, len(driven.plans)) == (0, 61)


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.2}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}], ids=str
)
def test_rows_with_penalties_never_guess(loaded: LoadedModel, penalty: dict[str, float]):
    driven = Driven(loaded)
    driven.generate(wanted(replace(GREEDY, **penalty)))
    assert usage_of(driven).drafted_tokens == 0


def test_rows_with_a_constraint_never_guess(loaded: LoadedModel):
    driven = Driven(loaded, constrain=lambda _: Anything())
    driven.generate(wanted(GREEDY))
    assert usage_of(driven).drafted_tokens == 0


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_guesses_end_where_the_output_does(loaded: LoadedModel, max_tokens: int):
    driven = Driven(loaded)
    expected = tokens_of(Driven(loaded).generate(wanted(GREEDY, 0, max_tokens)))
    assert tokens_of(driven.generate(wanted(GREEDY, max_tokens=max_tokens))) == expected
    assert usage_of(driven).completion_tokens == max_tokens
    driven.assert_nothing_is_held()


def test_a_token_that_ends_it_inside_a_guess_is_the_last(loaded: LoadedModel):
    plain = tokens_of(Driven(loaded).generate(wanted(GREEDY, 0)))
    for end in range(1, 20):
        stopping = StoppingSettings(60, min_tokens=end, stop_token_ids=frozenset(plain))
        guessed = Driven(loaded).generate(replace(wanted(GREEDY), stopping=stopping))
        alone = Driven(loaded).generate(replace(wanted(GREEDY, 0), stopping=stopping))
        assert outputs(guessed) == outputs(alone)
        assert finish_of(guessed).reason is FinishReason.STOP


def test_rows_that_guess_and_rows_that_do_not_share_steps(loaded: LoadedModel):
    driven = Driven(loaded)
    driven.admit(replace(wanted(GREEDY), key="guesses"))
    driven.admit(replace(wanted(GREEDY, 0), key="plain"))
    driven.finish()
    assert any(len(plan.decode) == 2 for plan in driven.plans)
    assert tokens_of(driven.events["guesses"]) == tokens_of(driven.events["plain"])


def test_layers_that_cannot_go_back_never_guess(models: Models):
    """A window that turns round has overwritten what a wrong guess would need (reported of mlx-lm as 1109)."""
    windows = models("window")
    rows = replace(windows, arithmetic=models("rows").arithmetic)
    for loaded in (windows, rows):
        driven = Driven(loaded)
        expected = tokens_of(Driven(loaded).generate(wanted(GREEDY, 0)))
        assert tokens_of(driven.generate(wanted(GREEDY))) == expected
        assert driven.cache.can_reject or usage_of(driven).drafted_tokens == 0
