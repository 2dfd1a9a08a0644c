"""Text generation over a tiny random Llama: what one request brings, and what is told of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.layers.cache import Step
from models.registry import LoadedModel
from models.step import NumericPath
from tests.models.stepping import step_logits
from tests.support.tiny_models import END_TOKEN_ID, VOCAB_SIZE
from tests.support.waiting import eventually
from tests.worker.text_driving import Driven
from tests.worker.text_engines import (
    details_of,
    drain,
    failure_of,
    finish_of,
    generate,
    request,
    running,
    submit,
    tiny_loader,
    tokens_of,
)
from tests.worker.text_mixes import has_ended
from tests.worker.text_models import changed, tiny
from worker.errors import ContextTooLong, InvalidField, ModelUnloading, QueueFull
from worker.events import Completed, Event, FinishReason, PrefillProgress, SequenceFinished, Started, TextDelta, Usage
from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import NotLoadedError, TextWorkload

LONG_PROMPT = tuple(index % 256 for index in range(600))


def kinds(events: list[Event]) -> list[str]:
    names = [type(event).__name__ for event in events]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


# What a request brings.


def test_events_come_in_the_order_of_the_contract(loaded: LoadedModel):
    events = Driven(loaded, TextSettings(prefill_chunk_tokens=3)).generate(request(prefill_progress=True))
    assert kinds(events) == ["Started", "PrefillProgress", "TextDelta", "SequenceFinished", "Completed"]
    assert events[0] == Started(7, 0)


def test_progress_of_a_prompt_is_told_by_chunks(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=256))
    events = driven.generate(request(prompt=LONG_PROMPT, prefill_progress=True, max_tokens=1))
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    assert progress == [PrefillProgress(done, 600) for done in (256, 512, 600)]


def test_usage_and_timing_add_up(loaded: LoadedModel):
    driven = Driven(loaded)
    events = driven.generate(request(max_tokens=5))
    last = events[-1]
    assert isinstance(last, Completed)
    assert last.usage == Usage(7, 5)
    # The prompt in a tick, then five that read a token each; the clock moves before each.
    assert (last.timing.queue_us, last.timing.time_to_first_token_us, last.timing.total_us) == (1000, 2000, 6000)
    assert sum(event.token_count for event in events if isinstance(event, TextDelta)) == 5
    counts = driven.workload.counts()
    assert (counts.prompt_tokens_total, counts.completion_tokens_total) == (7, 5)
    durations = {each.name: sum(each.counts) for each in counts.durations}
    assert durations == {"queue": 1, "time_to_first_token": 1, "inter_token_gap": 4}


def test_log_probabilities_are_those_of_the_model_with_penalties(loaded: LoadedModel):
    sampling = SamplingSettings(temperature=0.0, logit_bias={40: 30.0})
    events = Driven(loaded).generate(request(max_tokens=1, sampling=sampling, top_logprobs=4))
    (detail,) = details_of(events)
    logits = np.array(step_logits(loaded, loaded.make_cache(1), request().prompt_ids))[-1].astype(np.float64)
    logits[40] += 30.0
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert [each.id for each in detail.alternatives] == [int(token) for token in np.argsort(-logprobs)[:4]]
    assert detail.id == 40
    assert detail.logprob == pytest.approx(logprobs[40], abs=1e-4)
    for each in detail.alternatives:
        assert each.logprob == pytest.approx(logprobs[each.id], abs=1e-4)
        assert each.raw == loaded.tokenizer.token_bytes(each.id)


def test_log_probabilities_come_only_on_request(loaded: LoadedModel):
    driven = Driven(loaded)
    assert details_of(driven.generate(request())) == []
    assert all(each.logprob is None for each in details_of(driven.generate(request("r2", token_details=True))))
    alone = details_of(driven.generate(request("r3", top_logprobs=0)))
    assert all(each.logprob is not None and not each.alternatives for each in alone)


@pytest.mark.parametrize("path", list(NumericPath))
def test_a_long_prompt_in_chunks_gives_the_tokens_of_both_paths(tmp_path: Path, path: NumericPath):
    wanted = request(prompt=LONG_PROMPT, token_details=True)
    load_model = tiny_loader(tmp_path)
    expected = Driven(load_model(lambda _: None), TextSettings(prefill_chunk_tokens=100)).generate(wanted)
    found = Driven(tiny_loader(tmp_path, path)(lambda _: None)).generate(wanted)
    assert tokens_of(found) == tokens_of(expected)


def test_the_reference_path_shares_nothing_and_computes_each_row_by_itself(tmp_path: Path):
    steps: list[int] = []

    def note(step: Step, hidden: mx.array) -> mx.array:
        steps.append(len(step.plan.rows))
        return hidden

    driven = Driven(changed(tiny(tmp_path, path=NumericPath.REFERENCE), note))
    wanted = request("a", LONG_PROMPT, token_details=True)
    for key in "abc":
        driven.admit(replace(wanted, key=key))
    driven.finish()
    assert set(steps) == {1}
    assert driven.workload.counts().cached_prompt_tokens_total == 0
    alone = Driven(tiny(tmp_path, path=NumericPath.REFERENCE)).generate(wanted)
    assert [tokens_of(driven.events[key]) for key in "abc"] == [tokens_of(alone)] * 3


# How it ends.


def test_an_end_token_from_any_source_ends_it_and_stays_out_of_the_text(loaded: LoadedModel):
    driven = Driven(loaded)
    plain = tokens_of(driven.generate(request(max_tokens=20, token_details=True)))
    stopping = StoppingSettings(20, eos_token_ids=frozenset({1, plain[3]}))
    events = driven.generate(request("r2", stopping=stopping, token_details=True))
    assert tokens_of(events) == plain[: plain.index(plain[3]) + 1]
    assert finish_of(events) == SequenceFinished(FinishReason.EOS, eos_token_id=plain[3])


def test_the_context_ends_it(loaded: LoadedModel):
    events = Driven(loaded, TextSettings(max_context_tokens=10)).generate(request(prompt="1234567", max_tokens=50))
    assert finish_of(events).reason is FinishReason.CONTEXT_LENGTH
    assert isinstance(events[-1], Completed)
    assert events[-1].usage == Usage(7, 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_before_the_least_number_of_tokens_nothing_ends_it(loaded: LoadedModel, temperature: float):
    sampling = SamplingSettings(temperature=temperature, seed=3, logit_bias={END_TOKEN_ID: 99.0, 65: 50.0})
    stopping = StoppingSettings(20, min_tokens=6, stop_strings=("A",), eos_token_ids=frozenset({END_TOKEN_ID}))
    events = Driven(loaded).generate(request(sampling=sampling, stopping=stopping, token_details=True))
    tokens = tokens_of(events)
    assert END_TOKEN_ID not in tokens[:6]
    assert tokens[6:] == [END_TOKEN_ID]
    assert finish_of(events).reason is FinishReason.EOS


def test_no_forward_is_computed_past_the_last_token(loaded: LoadedModel):
    starts: list[int] = []

    def note(step: Step, hidden: mx.array) -> mx.array:
        starts.append(step.spans[0].start)
        return hidden

    for device in ("cpu", "metal"):
        starts.clear()
        Driven(changed(replace(loaded, device=device), note)).generate(request(max_tokens=3))
        assert starts == [0, 7, 8]


# What is refused.


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (request(prompt=()), InvalidField),
        (request(prompt=(VOCAB_SIZE,)), InvalidField),
        (request(prompt=(-1,)), InvalidField),
        (request(sampling=SamplingSettings(logit_bias={VOCAB_SIZE: 1.0})), InvalidField),
        (request(prompt=(1,) * 5000), ContextTooLong),
    ],
    ids=["no prompt", "token id", "negative", "bias", "context"],
)
async def test_what_the_model_cannot_take_is_refused(tmp_path: Path, wanted: TextRequest, error: type[Exception]):
    async with running(TextWorkload(tiny_loader(tmp_path), TextSettings())) as engine:
        assert isinstance(failure_of(await generate(engine, wanted)), error)
        assert isinstance((await generate(engine, request()))[-1], Completed)


async def test_rows_and_queue_are_bounded(tmp_path: Path):
    settings = TextSettings(max_batch_rows=1, max_queue_requests=2)
    async with running(TextWorkload(tiny_loader(tmp_path), settings)) as engine:
        for index in range(3):
            submit(engine, request(f"r{index}", max_tokens=3000))
        with pytest.raises(QueueFull):
            submit(engine, request("r3"))


def test_nothing_is_taken_before_the_load():
    def never(_: Callable[..., None]) -> LoadedModel:
        raise AssertionError

    with pytest.raises(NotLoadedError):
        _ = TextWorkload(never, TextSettings()).max_context_tokens


# What is told.


def test_the_tokens_of_a_step_are_told_while_it_is_computed(loaded: LoadedModel):
    seen: list[int] = []

    def note(_: Step, hidden: mx.array) -> mx.array:
        seen.append(driven.workload.counts().step_tokens)
        return hidden

    driven = Driven(changed(loaded, note), TextSettings(prefill_chunk_tokens=256))
    driven.generate(request(prompt=LONG_PROMPT, max_tokens=3))
    assert seen == [256, 256, 88, 1, 1]
    assert driven.workload.counts().step_tokens == 0


def test_views_tell_what_a_request_did_so_far(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(max_batch_rows=1))
    driven.admit(request("a", max_tokens=400))
    driven.admit(request("b"))
    for _ in range(4):
        driven.tick_once()
    first, second = driven.view("a"), driven.view("b")
    assert (first.request_id, first.state, first.usage) == ("a", "decoding", Usage(7, 3))
    assert (second.request_id, second.state, second.usage) == ("b", "queued", Usage(7, 0))


def test_a_decoding_row_gets_a_token_for_each_chunk_of_anothers_prompt(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=4))
    driven.admit(request("a", max_tokens=400))
    driven.until(lambda: driven.workload.counts().completion_tokens_total == 3)
    driven.admit(request("b", prompt=LONG_PROMPT, max_tokens=1))
    driven.until(lambda: has_ended(driven.events["b"]))
    counts = driven.workload.counts()
    assert counts.completion_tokens_total - 3 - 1 == len(LONG_PROMPT) // 4 + 1


async def test_stopping_frees_the_model(tmp_path: Path):
    subject = TextWorkload(tiny_loader(tmp_path), TextSettings())
    async with running(subject) as engine:
        outbox = submit(engine, request(max_tokens=4000))
        await eventually(lambda: subject.counts().completion_tokens_total > 0)
        assert await engine.stop(0.01) == 1
        assert isinstance(failure_of(await drain(outbox)), ModelUnloading)
        assert subject._loaded is None
