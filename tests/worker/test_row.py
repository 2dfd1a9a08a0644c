"""One row: what it takes of a draw, and what of its guesses stays."""

from dataclasses import replace
from functools import partial

import mlx.core as mx
import pytest

from models.layers.row_cache import RowCache, RowStep
from models.layers.stores.full import FullStore
from models.registry import LoadedModel
from native import dense, kernels
from tests.worker.constraining import Anything
from tests.worker.text_engines import request
from tests.worker.text_models import changed
from tests.worker.text_rows import advance, ready, row
from worker.batch import Batch
from worker.row import KernelFailedError, LogitsNotFiniteError, Row, RowOrderError, Underway
from worker.sampling import Draw
from worker.sequence import SamplingSettings, TextRequest

GUESSING = request(
    prompt="abababab",
    max_tokens=30,
    max_draft_tokens=6,
    sampling=SamplingSettings(temperature=0.0, logit_bias={97: 90.0}),  # it says a, whatever was before
)


def step(batch: Batch, rows: list[Row]) -> None:
    batch.build(rows, is_ahead=False)
    batch.draw(rows)


def test_a_row_takes_one_token_of_a_plain_draw(loaded: LoadedModel):
    batch, rows, cache = ready(loaded, request("a"), request("b", "other"))
    for length in range(7, 10):
        assert [len(tokens) for tokens in advance(rows)] == [1, 1]
        assert [cache.length(0), cache.length(1)] == [length, length - 2]
        step(batch, rows)
    assert [len(each.sequence.output_ids) for each in rows] == [3, 3]


def test_right_guesses_are_taken_and_stay(loaded: LoadedModel):
    batch, (subject,), cache = ready(loaded, GUESSING)
    assert advance([subject]) == [[97]]
    step(batch, [subject])
    assert subject.drafts == (98, 97, 98)  # as in the prompt; the first is wrong
    assert advance([subject]) == [[97]]
    assert cache.length(0) == 9
    assert (subject.sequence.num_drafted, subject.sequence.num_accepted) == (3, 0)
    while subject.sequence.num_accepted == 0:
        step(batch, [subject])
        num_drafts = len(subject.drafts)
        (tokens,) = advance([subject])
        assert len(tokens) <= 1 + num_drafts
        assert cache.length(0) == 8 + len(subject.sequence.output_ids) - 1
    assert set(subject.sequence.output_ids) == {97}


def test_it_never_guesses_past_its_limit(loaded: LoadedModel):
    short = replace(GUESSING, stopping=replace(GUESSING.stopping, max_tokens=3))
    batch, (subject,), _ = ready(loaded, short)
    for limit in (1, 0):
        advance([subject])
        step(batch, [subject])
        assert len(subject.drafts) <= limit


class NoWayBack(FullStore):
    can_trim = False


def test_what_may_guess(loaded: LoadedModel):
    cache = loaded.make_cache(1)
    penalty = replace(GUESSING, sampling=SamplingSettings(frequency_penalty=0.1))
    make_step = partial(RowStep, arithmetic=loaded.arithmetic)
    stuck = RowCache(loaded.model.attention_layers, 1, 100, make_step, lambda _: NoWayBack(2, 16, loaded.dtype), "none")
    assert row(cache, GUESSING).is_drafting
    assert not row(cache, replace(GUESSING, max_draft_tokens=0)).is_drafting
    assert not row(cache, penalty).is_drafting
    assert not row(cache, GUESSING, constraint=Anything()).is_drafting
    assert not row(stuck, GUESSING).is_drafting


@pytest.mark.parametrize("verb", ["slot", "draw", "take"])
def test_verbs_out_of_order_are_refused(loaded: LoadedModel, verb: str):
    subject = row(loaded.make_cache(1), request())
    with pytest.raises(RowOrderError):
        subject.take() if verb == "take" else getattr(subject, verb)


def test_a_draw_is_taken_once(loaded: LoadedModel):
    _, (subject,), _ = ready(loaded, request())
    subject.take()
    with pytest.raises(RowOrderError):
        subject.take()


def test_logits_that_are_not_numbers_give_an_error_and_no_token(loaded: LoadedModel):
    blank = changed(loaded, lambda _, hidden: hidden * float("nan"))
    _, (subject,), _ = ready(blank, request())
    with pytest.raises(LogitsNotFiniteError, match="r1"):
        subject.take()
    assert subject.sequence.output_ids == []


def test_log_probabilities_come_with_the_tokens(loaded: LoadedModel):
    wanted: TextRequest = request(top_logprobs=2)
    _, (subject,), _ = ready(loaded, wanted)
    (drawn,) = subject.take()
    assert drawn.alternatives[0] == (drawn.token_id, drawn.logprob)
    assert len(drawn.alternatives) == 2


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
def test_a_draw_that_failed_has_no_token_and_a_reason(loaded: LoadedModel):
    outside = dense.rows(mx.ones((2, 4)), mx.array([1, 2]))
    failing = Underway(Draw(outside[:, 0].astype(mx.uint32), outside[:, 1], None))
    subject = row(loaded.make_cache(1), request("a"), 0)
    subject.await_draw(failing, 0)
    with pytest.raises(KernelFailedError, match="outside the matrix"):
        subject.advance()
    with pytest.raises(LogitsNotFiniteError):
        subject.advance()
