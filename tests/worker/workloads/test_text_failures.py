"""What breaks ends those whose step it was, with a status, and nobody else (reported of mlx-lm as 1505 and 1909)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from models.blocks import BLOCK_TOKENS
from models.layers.block_group import BlockGroup
from models.layers.cache import Step
from models.registry import LoadedModel
from models.step import StepPlan
from native import kernels
from tests.support.waiting import eventually
from tests.worker.constraining import Anything
from tests.worker.text_driving import Driven, promised
from tests.worker.text_engines import details_of, drain, failure_of, generate, request, running, submit, tokens_of
from tests.worker.text_mixes import has_ended
from tests.worker.text_models import changed, tiny
from worker.engine import EngineState
from worker.errors import InternalError
from worker.events import Completed
from worker.prefixes import PrefixSettings
from worker.row import KernelFailedError
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

PROMPT = tuple(range(100))


def workload(folder: Path, hidden: Callable[[Step, mx.array], mx.array], **settings: int) -> TextWorkload:
    return TextWorkload(lambda _: changed(tiny(folder), hidden), TextSettings(**settings))  # pyright: ignore[reportArgumentType]


def breaks(when: Callable[[Step], bool], times: int = 1) -> Callable[[Step, mx.array], mx.array]:
    left = iter(range(times))

    def hidden(step: Step, found: mx.array) -> mx.array:
        if when(step) and next(left, None) is not None:
            raise RuntimeError("metal says no: /secret")
        return found

    return hidden


def is_decode(step: Step) -> bool:
    return all(span.count == 1 and span.start > 9 for span in step.spans)


def held(subject: TextWorkload) -> tuple[int, int]:
    ready = subject._ready
    return ready.cache.nbytes - ready.prefixes.nbytes, promised(ready.cache)


async def test_an_exception_in_a_decode_step_ends_its_two_streams_and_spares_the_queued_one(tmp_path: Path):
    subject = workload(tmp_path, breaks(is_decode), max_batch_rows=2)
    async with running(subject) as engine:
        outboxes = [submit(engine, request(name, max_tokens=50)) for name in ("a", "b", "c")]
        for outbox in outboxes[:2]:
            error = failure_of(await drain(outbox))
            assert isinstance(error, InternalError)
            assert "secret" not in error.message
        assert isinstance((await drain(outboxes[2]))[-1], Completed)
        assert isinstance((await generate(engine, request("d")))[-1], Completed)
        await eventually(lambda: held(subject) == (0, 0))
        assert engine.state is EngineState.READY


async def test_an_exception_in_a_prompt_ends_those_of_the_tick(tmp_path: Path):
    subject = workload(tmp_path, breaks(lambda step: step.spans[0].start == 64), prefill_chunk_tokens=32)
    async with running(subject) as engine:
        assert isinstance(failure_of(await generate(engine, request(prompt=PROMPT))), InternalError)
        events = await generate(engine, request("again", PROMPT))
        assert isinstance(events[-1], Completed)
        await eventually(lambda: held(subject) == (0, 0))


async def test_every_request_of_steps_that_keep_failing_gets_a_status(tmp_path: Path):
    subject = workload(tmp_path, breaks(is_decode, times=100), max_batch_rows=1)
    async with running(subject) as engine:
        outboxes = [submit(engine, request(str(number))) for number in range(5)]
        for outbox in outboxes:
            assert isinstance(failure_of(await drain(outbox)), InternalError)
        assert engine.state is EngineState.READY  # prompts are computed


async def test_what_a_failed_step_left_to_others_is_what_they_would_compute(tmp_path: Path):
    again = request("again", PROMPT, max_tokens=20, token_details=True, top_logprobs=2)
    async with running(TextWorkload(lambda _: tiny(tmp_path), TextSettings())) as engine:
        expected = await generate(engine, again)
    subject = workload(tmp_path, breaks(lambda step: step.spans[0].start == 110))
    async with running(subject) as engine:
        assert isinstance(failure_of(await generate(engine, request(prompt=PROMPT, max_tokens=50))), InternalError)
        assert details_of(await generate(engine, again)) == details_of(expected)


# Logits that are not numbers.


def spoils(slot: int, start: int) -> Callable[[Step, mx.array], mx.array]:
    """Return what makes one row's hidden state at a position no number."""

    def hidden(step: Step, found: mx.array) -> mx.array:
        for row, span in zip(step.plan.rows, step.spans, strict=True):
            if row.slot == slot and span.start == start:
                factors = [[float("nan") if place == span.first else 1.0] for place in range(found.shape[1])]
                return found * mx.array([factors])
        return found

    return hidden


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_logits_that_are_not_numbers_end_their_row_only(loaded: LoadedModel, device: str):
    wanted = request("good", token_details=True)
    expected = tokens_of(Driven(loaded).generate(wanted))
    driven = Driven(changed(replace(loaded, device=device), spoils(slot=1, start=10)))
    driven.admit(wanted)
    driven.admit(request("bad"))
    driven.finish()
    assert isinstance(failure_of(driven.events["bad"]), InternalError)
    assert tokens_of(driven.events["good"]) == expected
    assert has_ended(driven.generate(request("next")))
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("slot", range(3))
def test_they_end_the_other_sequences_of_their_request_and_no_other_request(
    loaded: LoadedModel, device: str, slot: int
):
    wanted = request("good", token_details=True)
    expected = tokens_of(Driven(loaded).generate(wanted))
    no_prefixes = TextSettings(prefixes=PrefixSettings(max_bytes=0))
    driven = Driven(changed(replace(loaded, device=device), spoils(slot, start=10)), no_prefixes)
    driven.admit(request("bad", num_sequences=3, max_tokens=20))
    driven.until(lambda: driven.workload.counts().completion_tokens_total > 0)
    driven.admit(wanted)
    driven.finish()
    assert isinstance(failure_of(driven.events["bad"]), InternalError)
    assert tokens_of(driven.events["good"]) == expected
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("num_drafts", [0, 4])
@pytest.mark.parametrize(
    ("chunk_tokens", "position", "num_kept"), [(512, 99, 0), (64, 99, 0), (64, 127, 3)], ids=["all", "end", "output"]
)
def test_nothing_behind_which_no_token_could_be_drawn_is_left_to_others(
    loaded: LoadedModel, device: str, num_drafts: int, chunk_tokens: int, position: int, num_kept: int
):
    wanted = request("again", PROMPT, max_tokens=40, token_details=True)
    expected = tokens_of(Driven(loaded).generate(wanted))
    broken = changed(replace(loaded, device=device), spoils_once(position))
    driven = Driven(broken, TextSettings(prefill_chunk_tokens=chunk_tokens))
    bad = driven.generate(request("bad", PROMPT, max_tokens=40, max_draft_tokens=num_drafts))
    assert isinstance(failure_of(bad), InternalError)
    assert driven.prefix_bytes == num_kept * BLOCK_TOKENS * loaded.token_bytes
    found = driven.generate(wanted)
    assert tokens_of(found) == expected
    last = found[-1]
    assert isinstance(last, Completed)
    assert last.usage.cached_prompt_tokens == num_kept * BLOCK_TOKENS
    driven.assert_nothing_is_held()


def spoils_once(position: int) -> Callable[[Step, mx.array], mx.array]:
    """Return what makes the first step that computes a position no numbers."""
    left = iter([True])

    def hidden(step: Step, found: mx.array) -> mx.array:
        has_it = any(span.start <= position < span.start + span.count for span in step.spans)
        return found * float("nan") if has_it and next(left, False) else found

    return hidden


def test_they_end_a_row_that_guesses(loaded: LoadedModel):
    driven = Driven(changed(loaded, spoils(slot=0, start=10)))
    events = driven.generate(request(max_draft_tokens=5))
    assert isinstance(failure_of(events), InternalError)
    driven.assert_nothing_is_held()


class Broken(Anything):
    """A constraint that breaks after some tokens."""

    def __init__(self, fails: Iterator[bool]) -> None:
        self._fails = fails

    def advance(self, token_id: int) -> None:
        if next(self._fails):
            raise ZeroDivisionError


async def test_a_constraint_that_breaks_ends_its_step(tmp_path: Path):
    subject = TextWorkload(lambda _: tiny(tmp_path), TextSettings())
    bad = replace(request("bad"), make_constraint=lambda: Broken(iter([False, False, True])))
    async with running(subject) as engine:
        assert isinstance(failure_of(await generate(engine, bad)), InternalError)
        assert isinstance((await generate(engine, request("next")))[-1], Completed)
        await eventually(lambda: held(subject) == (0, 0))


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_kernel_that_fails_in_a_prompt_ends_all_that_have_begun_and_leaves_nothing_for_others(
    loaded: LoadedModel, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    wanted = request("long", PROMPT, token_details=True)
    expected = tokens_of(Driven(loaded).generate(wanted))
    driven = Driven(loaded, TextSettings(3, prefill_chunk_tokens=BLOCK_TOKENS))
    driven.admit(request("slow", max_tokens=50), max_bytes=1)
    driven.until(lambda: driven.state("slow") == "paused")
    rows_of, numbers = BlockGroup.rows_of, iter(range(99))

    def outside(group: BlockGroup, plan: StepPlan) -> NDArray[np.int32]:
        rows = rows_of(group, plan)
        rows[0, 2] = group.blocks.num_blocks if next(numbers) == chunk else rows[0, 2]
        return rows

    monkeypatch.setattr(BlockGroup, "rows_of", outside)
    with pytest.raises(KernelFailedError, match="outside the pool"):
        driven.generate(wanted)
    monkeypatch.undo()
    driven.workload.recover()
    for key in ("long", "slow"):
        assert isinstance(failure_of(driven.events[key]), InternalError)
        assert not tokens_of(driven.events[key])
    assert driven.prefix_bytes == 0
    assert tokens_of(driven.generate(wanted)) == expected
    driven.assert_nothing_is_held()
