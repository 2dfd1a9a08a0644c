"""Tokens that a constraint leaves no choice about are not drawn, and nothing else about the output changes."""

import math
import random
from dataclasses import replace

import mlx.core as mx
import pytest

from models.blocks import BLOCK_TOKENS
from models.layers.cache import Step
from models.registry import LoadedModel
from tests.worker.constraining import Anything, Choices
from tests.worker.text_driving import Driven
from tests.worker.text_engines import failure_of, finish_of, request, tokens_of
from tests.worker.text_models import Models, changed
from worker.errors import ConstraintTooComplex, InternalError
from worker.events import Completed, Event, FinishReason, Usage
from worker.sequence import SamplingSettings, TextRequest, TokenNotAllowedError

# Places with one choice stand alone, together, at the start and at the end.
PLACES = [[[65], [66]], [[97, 98, 99]], [[100], [101], [102], [103]], [[97, 98]], [[99, 100]], [[67]]]
WORD = [place for group in PLACES for place in group]
FORCED = sum(len(place) == 1 for place in WORD)
SEEDED = SamplingSettings(seed=11, temperature=1.3, penalty_window=0, repetition_penalty=1.2)


def wanted(key: str = "a", max_tokens: int = 20, sampling: SamplingSettings = SEEDED) -> TextRequest:
    return request(key, max_tokens=max_tokens, token_details=True, sampling=sampling)


def usage_of(events: list[Event]) -> Usage:
    last = events[-1]
    assert isinstance(last, Completed)
    return last.usage


def run(loaded: LoadedModel, subject: TextRequest, *, skips: bool, is_whole: bool = False) -> list[Event]:
    driven = Driven(loaded, constrain=lambda _: Choices(WORD, skips=skips, is_whole=is_whole))
    events = driven.generate(subject)
    driven.assert_nothing_is_held()
    return events


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("seed", range(5))
def test_output_is_that_of_drawing_each(loaded: LoadedModel, device: str, seed: int):
    model, subject = replace(loaded, device=device), wanted(sampling=replace(SEEDED, seed=seed))
    skipped, drawn = run(model, subject, skips=True), run(model, subject, skips=False)
    assert tokens_of(skipped) == tokens_of(drawn)
    assert (usage_of(skipped).forced_tokens, usage_of(drawn).forced_tokens) == (FORCED, 0)
    assert usage_of(skipped).completion_tokens == usage_of(drawn).completion_tokens == 20


def test_fewer_steps_are_computed(loaded: LoadedModel):
    counts: list[int] = []
    for skips in (True, False):
        driven = Driven(loaded, constrain=lambda _, skips=skips: Choices(WORD, skips=skips))
        driven.generate(wanted(max_tokens=len(WORD) + 1))
        counts.append(len(driven.plans))
    assert counts[0] < counts[1]


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_limit_holds_inside_of_them(loaded: LoadedModel, max_tokens: int):
    events = run(loaded, wanted(max_tokens=max_tokens), skips=True)
    assert tokens_of(events) == tokens_of(run(loaded, wanted(max_tokens=max_tokens), skips=False))
    assert finish_of(events).reason is FinishReason.MAX_TOKENS


@pytest.mark.parametrize("skips", [True, False])
def test_a_whole_constraint_ends_the_sequence(loaded: LoadedModel, skips: bool):
    events = run(loaded, wanted(), skips=skips, is_whole=True)
    assert finish_of(events).reason is FinishReason.CONSTRAINT_COMPLETE
    assert usage_of(events).completion_tokens == len(WORD)


@pytest.mark.parametrize("stopping", [[65], [102], [67]], ids=["first", "inside", "last"])
def test_a_stop_token_among_them_ends_the_sequence(loaded: LoadedModel, stopping: list[int]):
    base = wanted()
    subject = replace(base, stopping=replace(base.stopping, stop_token_ids=frozenset(stopping)))
    events = run(loaded, subject, skips=True)
    assert finish_of(events).stop_token_id == stopping[0]
    assert tokens_of(events) == tokens_of(run(loaded, subject, skips=False))


@pytest.mark.parametrize("stopping", [[], [65], [101]], ids=["none", "first", "inside"])
def test_all_that_are_told_are_counted_and_no_others(loaded: LoadedModel, stopping: list[int]):
    base = wanted()
    subject = replace(base, stopping=replace(base.stopping, stop_token_ids=frozenset(stopping)))
    driven = Driven(loaded, constrain=lambda _: Choices(WORD))
    events = driven.generate(subject)
    num_tokens = len(tokens_of(events))
    assert usage_of(events).completion_tokens == num_tokens
    assert driven.workload.counts().completion_tokens_total == num_tokens
    assert driven.workload._stats.decode.num_tokens == num_tokens


def test_their_log_probability_is_that_of_a_certain_token(loaded: LoadedModel):
    subject = replace(wanted(), top_logprobs=2)
    details = [
        [
            (token.id, round(token.logprob or 0.0, 4))
            for event in run(loaded, subject, skips=skips)
            for token in getattr(event, "tokens", ())
        ]
        for skips in (True, False)
    ]
    assert details[0] == details[1]


@pytest.mark.parametrize("kind", ["plain", "window", "8"])
def test_rows_with_and_without_them_are_as_if_alone(models: Models, kind: str):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    loaded, rng = models(kind), random.Random(seed)
    words = {
        f"r{number}": [rng.choice([[rng.randrange(60, 120)], [65, 66, 67], list(range(97, 110))]) for _ in range(12)]
        for number in range(6)
    }
    subjects = {key: wanted(key, sampling=replace(SEEDED, seed=rng.randrange(99))) for key in words}

    def constrain(subject: TextRequest) -> Choices | Anything:
        return Anything() if subject.key == "r0" else Choices(words[subject.key])

    together = Driven(loaded, constrain=constrain)
    for subject in subjects.values():
        together.admit(subject)
        for _ in range(rng.randrange(3)):
            together.tick_once()
    together.finish()
    alone = {key: tokens_of(Driven(loaded, constrain=constrain).generate(each)) for key, each in subjects.items()}
    assert {key: tokens_of(events) for key, events in together.events.items()} == alone
    together.assert_nothing_is_held()


class Fails(Anything):
    """Runs out of what it may spend, or contradicts itself, after some tokens."""

    def __init__(self, after: int, error: Exception) -> None:
        self._left = after
        self._error = error

    def skip(self) -> tuple[int, ...]:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return ()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ConstraintTooComplex("spec.constraint", "it is"), ConstraintTooComplex),
        (TokenNotAllowedError("it forces what it forbids"), InternalError),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 4])
def test_one_that_fails_ends_its_request_alone(
    loaded: LoadedModel, after: int, error: Exception, answer: type[Exception]
):
    driven = Driven(loaded, constrain=lambda subject: Fails(after, error) if subject.key == "bad" else Anything())
    subjects = [wanted("good"), replace(wanted("bad"), num_sequences=2), wanted("too")]
    for subject in subjects:
        driven.admit(subject)
    driven.finish()
    assert isinstance(failure_of(driven.events["bad"]), answer)
    for subject in (subjects[0], subjects[2]):
        assert tokens_of(driven.events[subject.key]) == tokens_of(Driven(loaded).generate(subject))
    driven.assert_nothing_is_held()


def test_a_block_is_shared_only_once_a_token_was_drawn_behind_it(loaded: LoadedModel):
    last = BLOCK_TOKENS - 1  # the first token that is drawn fills the block, and others are forced behind it

    def spoiled(step: Step, hidden: mx.array) -> mx.array:
        return hidden * math.nan if step.spans[0].start >= last else hidden

    subject = replace(wanted(), prompt_ids=tuple(range(last)))
    driven = Driven(changed(loaded, spoiled), constrain=lambda _: Choices([[97, 98], [65], [66]]))
    assert isinstance(failure_of(driven.generate(subject)), InternalError)
    assert driven.prefix_bytes == 0
    driven = Driven(loaded, constrain=lambda _: Choices([[97, 98], [65], [66]]))
    driven.generate(subject)
    assert driven.prefix_bytes > 0


@pytest.mark.parametrize("kind", ["plain", "window", "8", "rows"])
@pytest.mark.parametrize("seed", range(4))
def test_who_goes_on_behind_them_finds_blocks_that_are_right(models: Models, kind: str, seed: int):
    loaded, dice = models(kind), random.Random(seed)
    places = [dice.choice([[dice.randrange(97, 123)], [65, 66, 67], list(range(97, 110))]) for _ in range(80)]
    driven = Driven(loaded, constrain=lambda subject: Choices(places) if subject.key == "first" else Anything())
    first = replace(wanted("first", max_tokens=90), prompt_ids=tuple(range(20)))
    said = tokens_of(driven.generate(first))
    num_tokens = dice.randrange(50, 90)
    next_turn = replace(wanted("next"), prompt_ids=(*first.prompt_ids, *said[:num_tokens], 9))
    found = driven.generate(next_turn)
    assert usage_of(found).cached_prompt_tokens == (20 + num_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    assert tokens_of(found) == tokens_of(Driven(loaded).generate(next_turn))
    driven.assert_nothing_is_held()


def test_a_constraint_that_allows_nothing_ends_before_the_first_token(loaded: LoadedModel):
    driven = Driven(loaded, constrain=lambda _: Choices([], is_whole=True))
    events = driven.generate(wanted())
    assert (tokens_of(events), finish_of(events).reason) == ([], FinishReason.CONSTRAINT_COMPLETE)
    assert usage_of(events).completion_tokens == 0
    driven.assert_nothing_is_held()
