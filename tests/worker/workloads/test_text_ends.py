"""However and whenever a request ends, what it held is free by the next tick, and nothing of it is left for others."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from models.registry import LoadedModel
from tests.worker.text_driving import promised
from tests.worker.text_engines import TextEngine, details_of, drain, failure_of, request, submit, tokens_of
from tests.worker.text_mixes import LETTERS
from tests.worker.ticking import Clock
from worker.engine import Engine
from worker.errors import CancelledByOperator, DeadlineExceeded, SlowReader, WorkerError
from worker.events import Completed, Failed
from worker.outbox import Outbox
from worker.sequence import SamplingSettings, State, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

PROMPT = tuple(range(100))
LETTERS_ONLY = SamplingSettings(temperature=0.0, logit_bias=dict.fromkeys(LETTERS, 40.0))


@dataclass
class Stepped:
    """An engine whose cycles a test runs on its own thread, by a clock that it moves."""

    loaded: LoadedModel
    settings: TextSettings = field(default_factory=lambda: TextSettings(2, prefill_chunk_tokens=16))
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.workload = TextWorkload(lambda _: self.loaded, self.settings, clock=self.clock)
        self.engine: TextEngine = Engine(self.workload, asyncio.get_running_loop(), clock=self.clock, slow_reader_s=9.0)
        assert self.engine._load()

    def cycle(self) -> None:
        self.engine._has_work = True  # so that it does not wait
        self.engine._cycle()

    def until(self, predicate: Callable[[], bool]) -> None:
        for _ in range(2000):
            if predicate():
                return
            self.cycle()
        raise AssertionError("it never holds")

    def state(self, key: str) -> str | None:
        return next((view.state for view in self.engine.requests() if view.key == key), None)

    def held(self) -> tuple[int, int]:
        """Return blocks that are no prefix's, in bytes, and the room that is promised."""
        ready = self.workload._ready
        return ready.cache.nbytes - ready.prefixes.nbytes, promised(ready.cache)

    def num_drafted(self) -> int:
        rows = [row for group in self.workload._groups.values() for row in group.rows]
        return sum(row.sequence.num_drafted for row in rows)


def queued(stepped: Stepped, wanted: TextRequest) -> Outbox:
    for name in ("x", "y"):
        submit(stepped.engine, request(name, max_tokens=2000))
    stepped.until(lambda: stepped.state("x") == stepped.state("y") == "decoding")
    outbox = submit(stepped.engine, wanted)
    stepped.cycle()
    assert stepped.state("r1") == "queued"
    return outbox


def prefilling(stepped: Stepped, wanted: TextRequest) -> Outbox:
    outbox = submit(stepped.engine, wanted)
    for _ in range(3):
        stepped.cycle()
    assert stepped.state("r1") == "prefilling"
    return outbox


def decoding(stepped: Stepped, wanted: TextRequest) -> Outbox:
    outbox = submit(stepped.engine, wanted)
    stepped.until(lambda: stepped.workload.counts().completion_tokens_total == 40)
    assert stepped.state("r1") == "decoding"
    return outbox


def paused(stepped: Stepped, wanted: TextRequest) -> Outbox:
    outbox = submit(stepped.engine, replace(wanted, token_details=True), max_bytes=60)
    stepped.until(lambda: stepped.state("r1") == "paused")
    return outbox


def drafting(stepped: Stepped, wanted: TextRequest) -> Outbox:
    outbox = submit(stepped.engine, replace(wanted, sampling=LETTERS_ONLY, max_draft_tokens=10))
    stepped.until(lambda: stepped.num_drafted() > 20)
    return outbox


def several(stepped: Stepped, wanted: TextRequest) -> Outbox:
    outbox = submit(stepped.engine, replace(wanted, num_sequences=3))
    stepped.until(lambda: stepped.workload.counts().completion_tokens_total > 40)
    assert stepped.workload._scheduler.num_waiting == 1
    return outbox


REACH = [queued, prefilling, decoding, paused, drafting, several]


def cancel(stepped: Stepped) -> type[WorkerError]:
    assert stepped.engine.cancel("r1", CancelledByOperator("r1"))
    return CancelledByOperator


def pass_deadline(stepped: Stepped) -> type[WorkerError]:
    stepped.clock.now += 2
    return DeadlineExceeded


@pytest.mark.parametrize("end", [cancel, pass_deadline], ids=["cancelled", "overdue"])
@pytest.mark.parametrize("reach", REACH)
async def test_what_a_request_held_is_free_by_the_next_tick(
    loaded: LoadedModel,
    reach: Callable[[Stepped, TextRequest], Outbox],
    end: Callable[[Stepped], type[WorkerError]],
):
    stepped = Stepped(loaded)
    wanted = request(prompt=PROMPT, max_tokens=2000, deadline=stepped.clock() + 1)
    outbox = reach(stepped, wanted)
    others = {view.key for view in stepped.engine.requests()} - {"r1"}
    steps = stepped.engine.steps
    error = end(stepped)
    stepped.cycle()
    assert {view.key for view in stepped.engine.requests()} == others
    assert stepped.engine.steps - steps == (1 if others else 0), "another step was computed for nobody"
    assert stepped.workload._scheduler.num_running == len(others)
    for key in others:
        stepped.engine.cancel(key, CancelledByOperator(key))
    stepped.cycle()
    assert stepped.held() == (0, 0)
    assert stepped.workload.counts().running == stepped.workload.counts().queued == 0
    assert isinstance(failure_of(await drain(outbox)), error)


@pytest.mark.parametrize(("reach", "is_left"), [(prefilling, False), (decoding, True), (drafting, True)])
async def test_what_it_left_to_others_is_what_they_would_compute(
    loaded: LoadedModel, reach: Callable[[Stepped, TextRequest], Outbox], is_left: bool
):
    again = request("again", PROMPT, max_tokens=20, token_details=True, top_logprobs=3)
    cold = Stepped(loaded)
    expected = submit(cold.engine, again)
    cold.until(lambda: not cold.engine.requests())
    stepped = Stepped(loaded)
    reach(stepped, request(prompt=PROMPT, max_tokens=2000))
    cancel(stepped)
    found = submit(stepped.engine, again)
    stepped.until(lambda: not stepped.engine.requests())
    warm, wanted = await drain(found), await drain(expected)
    assert isinstance(warm[-1], Completed)
    assert (warm[-1].usage.cached_prompt_tokens >= 32) is is_left
    assert details_of(warm) == details_of(wanted)


async def test_the_next_one_gets_the_slot_in_the_same_tick(loaded: LoadedModel):
    stepped = Stepped(loaded, TextSettings(1))
    submit(stepped.engine, request("first", max_tokens=2000))
    stepped.until(lambda: stepped.state("first") == "decoding")
    submit(stepped.engine, request("second"))
    stepped.cycle()
    assert stepped.state("second") == "queued"
    stepped.engine.cancel("first", CancelledByOperator("first"))
    stepped.cycle()
    assert stepped.state("second") == "decoding"


async def test_a_request_that_is_overdue_never_starts(loaded: LoadedModel):
    stepped = Stepped(loaded)
    outbox = submit(stepped.engine, request(deadline=stepped.clock() - 1))
    stepped.cycle()
    assert [type(event) for event in await drain(outbox)] == [Failed]
    assert stepped.engine.steps == 0


async def test_a_cancelled_request_says_what_it_used(loaded: LoadedModel):
    stepped = Stepped(loaded)
    outbox = decoding(stepped, request(prompt=PROMPT, max_tokens=2000))
    cancel(stepped)
    stepped.cycle()
    last = (await drain(outbox))[-1]
    assert isinstance(last, Failed)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (100, 40)


async def test_a_reader_that_is_too_slow_loses_its_slot(loaded: LoadedModel):
    stepped = Stepped(loaded)
    outbox = paused(stepped, request(max_tokens=2000))
    stepped.cycle()
    stepped.clock.now += 10
    stepped.cycle()
    assert stepped.held() == (0, 0)
    assert isinstance(failure_of(await drain(outbox)), SlowReader)


async def test_a_paused_row_goes_on_where_it_was(loaded: LoadedModel):
    wanted = request(max_tokens=30, token_details=True)
    stepped, other = Stepped(loaded), Stepped(loaded)
    plain = submit(other.engine, wanted)
    other.until(lambda: not other.engine.requests())
    outbox = paused(stepped, wanted)
    tokens = list[int]()
    while stepped.engine.requests():
        stepped.until(lambda: outbox.is_full or not stepped.engine.requests())
        await asyncio.sleep(0)  # what was posted is delivered
        if outbox.is_full:
            tokens += tokens_of([await outbox.take()])
    assert tokens + tokens_of(await drain(outbox)) == tokens_of(await drain(plain))


async def test_a_paused_row_holds_up_no_other(loaded: LoadedModel):
    stepped = Stepped(loaded)
    paused(stepped, request(max_tokens=2000))
    outbox = submit(stepped.engine, request("other", max_tokens=30))
    stepped.until(lambda: stepped.state("other") is None)
    assert isinstance((await drain(outbox))[-1], Completed)
    row = stepped.workload._groups["r1"].rows[0]
    assert row.sequence.state is State.PAUSED
