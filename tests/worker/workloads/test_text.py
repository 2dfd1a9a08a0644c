"""Text generation by an engine over a tiny random Llama."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from models.layers.cache import KVCache, Step
from models.registry import LoadedModel, LoadProgress, TextModel
from models.step import NumericPath
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.waiting import eventually
from tests.worker.text_engines import (
    LoadModel,
    TextEngine,
    drain,
    failure_of,
    finish_of,
    generate,
    request,
    running,
    submit,
    text_of,
    tiny_loader,
    tokens_of,
)
from worker.errors import (
    CancelledByOperator,
    ContextTooLong,
    InternalError,
    InvalidField,
    ModelUnloading,
    QueueFull,
    SlowReader,
)
from worker.events import Completed, Event, Failed, FinishReason, PrefillProgress, Started, TextDelta, Usage
from worker.row import Row
from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
from worker.workloads.text import TextSettings, TextWorkload

LONG_PROMPT = tuple(index % 256 for index in range(600))
GREEDY = SamplingSettings(temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture
def load_model(folder: Path) -> LoadModel:
    return tiny_loader(folder)


def workload(load_model: LoadModel, **settings: int) -> TextWorkload:
    return TextWorkload(load_model, TextSettings(**settings))


class ChangedModel:
    """A model whose logits or forwards a test changes; `change` gets the position and the logits' input."""

    def __init__(self, model: TextModel, change: Callable[[Step, mx.array], mx.array]) -> None:
        self._model = model
        self._change = change

    def make_cache(self, num_slots: int) -> KVCache:
        return self._model.make_cache(num_slots)

    def hidden(self, step: Step) -> mx.array:
        return self._change(step, self._model.hidden(step))

    def head(self, hidden: mx.array) -> mx.array:
        return self._model.head(hidden)


def changed(load_model: LoadModel, change: Callable[[Step, mx.array], mx.array]) -> LoadModel:
    def load_changed(report: Callable[[LoadProgress], None]) -> LoadedModel:
        loaded = load_model(report)
        return replace(loaded, model=ChangedModel(loaded.model, change))

    return load_changed


def kinds(events: list[Event]) -> list[str]:
    names = [type(event).__name__ for event in events]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


async def test_events_come_in_the_order_of_the_contract(load_model: LoadModel):
    async with running(workload(load_model, prefill_chunk_tokens=3)) as engine:
        events = await generate(engine, request(prefill_progress=True))
    assert kinds(events) == ["Started", "PrefillProgress", "TextDelta", "SequenceFinished", "Completed"]
    assert events[0] == Started(7, 0)


async def test_progress_of_a_prompt_is_told_by_chunks(load_model: LoadModel):
    subject = workload(load_model, prefill_chunk_tokens=256)
    async with running(subject) as engine:
        events = await generate(engine, request(prompt=LONG_PROMPT, prefill_progress=True, max_tokens=1))
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    assert progress[-1] == PrefillProgress(600, 600)
    assert all(event.processed_tokens in {256, 512, 600} for event in progress)


async def test_the_tokens_of_a_step_are_told_while_it_is_computed(load_model: LoadModel):
    seen: list[int] = []

    def note(_: Step, hidden: mx.array) -> mx.array:
        seen.append(subject.counts().step_tokens)
        return hidden

    subject = TextWorkload(changed(load_model, note), TextSettings(prefill_chunk_tokens=256))
    async with running(subject) as engine:
        await generate(engine, request(prompt=LONG_PROMPT, max_tokens=3))
    assert seen == [256, 256, 88, 1, 1]
    assert subject.counts().step_tokens == 0


async def test_usage_and_timing_add_up(load_model: LoadModel):
    subject = workload(load_model)
    async with running(subject) as engine:
        events = await generate(engine, request(max_tokens=5))
    last = events[-1]
    assert isinstance(last, Completed)
    assert last.usage == Usage(7, 5)
    assert last.timing.total_us >= last.timing.time_to_first_token_us > 0
    assert sum(event.token_count for event in events if isinstance(event, TextDelta)) == 5
    assert (subject.counts().prompt_tokens_total, subject.counts().completion_tokens_total) == (7, 5)


@pytest.mark.parametrize("path", list(NumericPath))
async def test_a_long_prompt_in_chunks_gives_the_tokens_of_both_paths(folder: Path, path: NumericPath):
    async with running(TextWorkload(tiny_loader(folder), TextSettings(prefill_chunk_tokens=100))) as engine:
        expected = tokens_of(await generate(engine, request(prompt=LONG_PROMPT, token_details=True)))
    async with running(TextWorkload(tiny_loader(folder, path), TextSettings())) as engine:
        found = tokens_of(await generate(engine, request(prompt=LONG_PROMPT, token_details=True)))
    assert found == expected


REQUESTS = {
    "greedy": request("greedy", "abc", max_tokens=24, token_details=True),
    "seeded": request("seeded", "abc", max_tokens=24, token_details=True, sampling=SamplingSettings(seed=11)),
    "other seed": request("other seed", "abc", max_tokens=24, token_details=True, sampling=SamplingSettings(seed=12)),
    "penalties": request(
        "penalties",
        "hello",
        max_tokens=24,
        token_details=True,
        sampling=SamplingSettings(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5, penalty_window=0),
    ),
    "filters": request(
        "filters", "xyz", max_tokens=24, token_details=True, sampling=SamplingSettings(seed=3, top_p=0.9, top_k=30)
    ),
    "bias": request(
        "bias", "abc", max_tokens=24, token_details=True, sampling=SamplingSettings(0.0, logit_bias={65: 99.0})
    ),
    "long": request("long", LONG_PROMPT, max_tokens=12, token_details=True, sampling=SamplingSettings(seed=5)),
}


async def test_each_request_gives_the_same_whatever_else_runs(load_model: LoadModel):
    async with running(workload(load_model, prefill_chunk_tokens=64)) as engine:
        alone = {name: tokens_of(await generate(engine, wanted)) for name, wanted in REQUESTS.items()}
    async with running(workload(load_model, prefill_chunk_tokens=64, max_batch_rows=3)) as engine:
        outboxes = {name: submit(engine, wanted) for name, wanted in REQUESTS.items()}
        together = {name: tokens_of(await drain(outbox)) for name, outbox in outboxes.items()}
    assert together == alone
    assert alone["seeded"] != alone["other seed"]
    assert alone["bias"] == [65] * 24


async def test_penalties_see_the_output(load_model: LoadModel):
    sampling = SamplingSettings(temperature=0.0, presence_penalty=1000.0, penalty_window=0)
    async with running(workload(load_model)) as engine:
        found = tokens_of(await generate(engine, request(max_tokens=60, sampling=sampling, token_details=True)))
    assert len(set(found)) == 60


async def test_a_row_that_joins_and_leaves_changes_no_other(load_model: LoadModel):
    async with running(workload(load_model)) as engine:
        alone = tokens_of(await generate(engine, REQUESTS["seeded"]))
        outbox = submit(engine, REQUESTS["seeded"])
        for name in ("penalties", "bias"):
            submit(engine, REQUESTS[name])
        engine.cancel("penalties", CancelledByOperator("penalties"))
        assert tokens_of(await drain(outbox)) == alone


async def test_an_end_token_from_any_source_ends_it_and_stays_out_of_the_text(load_model: LoadModel):
    async with running(workload(load_model)) as engine:
        plain = tokens_of(await generate(engine, request(max_tokens=20, token_details=True)))
        stopping = StoppingSettings(20, eos_token_ids=frozenset({1, plain[3]}))
        events = await generate(engine, request(stopping=stopping, token_details=True))
    at = plain.index(plain[3])
    assert tokens_of(events) == plain[: at + 1]
    assert finish_of(events).reason is FinishReason.EOS
    assert finish_of(events).eos_token_id == plain[3]


async def test_a_stop_string_ends_it_in_the_stream_as_in_the_whole(load_model: LoadModel):
    biased = SamplingSettings(seed=4, logit_bias=dict.fromkeys(range(64, 72), 60.0))
    async with running(workload(load_model)) as engine:
        whole = text_of(await generate(engine, request(max_tokens=40, sampling=biased)))
        stop = whole[20:23]
        stopping = StoppingSettings(40, stop_strings=(stop, "never"))
        events = await generate(engine, request(stopping=stopping, sampling=biased))
    assert text_of(events) == whole[: whole.index(stop)]
    assert finish_of(events).stop_string == stop


async def test_the_context_ends_it(load_model: LoadModel):
    async with running(workload(load_model, max_context_tokens=10)) as engine:
        events = await generate(engine, request(prompt="1234567", max_tokens=50))
        assert finish_of(events).reason is FinishReason.CONTEXT_LENGTH
        assert events[-1] == replace(events[-1], usage=Usage(7, 3))


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (request(prompt=()), InvalidField),
        (request(prompt=(VOCAB_SIZE,)), InvalidField),
        (request(sampling=SamplingSettings(logit_bias={VOCAB_SIZE: 1.0})), InvalidField),
        (request(prompt=(1,) * 5000), ContextTooLong),
    ],
    ids=["no prompt", "token id", "bias", "context"],
)
async def test_what_the_model_cannot_take_is_refused(
    load_model: LoadModel, wanted: TextRequest, error: type[Exception]
):
    async with running(workload(load_model)) as engine:
        assert isinstance(failure_of(await generate(engine, wanted)), error)
        assert isinstance((await generate(engine, request()))[-1], Completed)


async def test_rows_and_queue_are_bounded(load_model: LoadModel):
    async with running(workload(load_model, max_batch_rows=1, max_queue_requests=2)) as engine:
        for index in range(3):
            submit(engine, request(f"r{index}", max_tokens=3000))
        with pytest.raises(QueueFull):
            submit(engine, request("r3"))


def cache_bytes(subject: TextWorkload) -> int:
    return subject._ready.cache.nbytes


async def test_everything_is_free_after_the_last_request(load_model: LoadModel):
    subject = workload(load_model, max_batch_rows=2)
    async with running(subject) as engine:
        for outbox in [submit(engine, request(f"r{index}")) for index in range(5)]:
            await drain(outbox)
        assert cache_bytes(subject) == 0
        assert (subject.counts().running, subject.counts().queued) == (0, 0)


async def cancelled(engine: TextEngine, wanted: TextRequest, until: Callable[[], bool]) -> Failed:
    outbox = submit(engine, wanted)
    await eventually(until)
    engine.cancel(wanted.key, CancelledByOperator("x"))
    last = (await drain(outbox))[-1]
    assert isinstance(last, Failed)
    assert isinstance(last.error, CancelledByOperator)
    return last


async def test_cancelling_in_a_prompt_frees_the_slot_and_computes_no_further(load_model: LoadModel):
    subject = workload(load_model, prefill_chunk_tokens=1)
    async with running(subject) as engine:
        wanted = request(prompt=(1,) * 4000)
        last = await cancelled(engine, wanted, lambda: subject.counts().prompt_tokens_total > 3)
        assert last.usage.completion_tokens == 0
        assert cache_bytes(subject) == 0
        assert subject.counts().prompt_tokens_total < 4000


async def test_cancelling_while_decoding_frees_the_slot(load_model: LoadModel):
    subject = workload(load_model)
    async with running(subject) as engine:
        last = await cancelled(engine, request(max_tokens=4000), lambda: subject.counts().completion_tokens_total > 3)
        assert 3 < last.usage.completion_tokens < 4000
        assert cache_bytes(subject) == 0


async def test_cancelling_in_the_queue_leaves_nothing(load_model: LoadModel):
    subject = workload(load_model, max_batch_rows=1)
    async with running(subject) as engine:
        submit(engine, request("first", max_tokens=4000))
        last = await cancelled(engine, request("second"), lambda: subject.counts().queued == 1)
        assert last.usage == Usage(7, 0)
        assert subject.counts().queued == 0


async def test_cancelling_a_paused_row_frees_the_slot(load_model: LoadModel):
    subject = workload(load_model)
    async with running(subject) as engine:
        outbox = submit(engine, request(max_tokens=4000, token_details=True), max_bytes=50)
        await eventually(lambda: [view.state for view in engine.requests()] == ["paused"])
        engine.cancel("r1", CancelledByOperator("r1"))
        await eventually(lambda: engine.requests() == [])
        assert cache_bytes(subject) == 0
        assert isinstance(failure_of(await drain(outbox)), CancelledByOperator)


async def test_a_paused_row_goes_on_where_it_was(load_model: LoadModel):
    wanted = request(max_tokens=30, token_details=True)
    async with running(workload(load_model)) as engine:
        expected = tokens_of(await generate(engine, wanted))
        outbox = submit(engine, wanted, max_bytes=50)
        await eventually(lambda: [view.state for view in engine.requests()] == ["paused"])
        assert tokens_of(await drain(outbox)) == expected


async def test_a_reader_that_is_too_slow_loses_its_slot(load_model: LoadModel):
    subject = workload(load_model)
    async with running(subject, slow_reader_s=0.05) as engine:
        outbox = submit(engine, request(max_tokens=4000, token_details=True), max_bytes=50)
        await eventually(lambda: engine.requests() == [])
        assert isinstance(failure_of(await drain(outbox)), SlowReader)
        assert cache_bytes(subject) == 0


async def test_an_exception_in_a_step_ends_the_streams_in_it_and_the_queued_one_is_served(load_model: LoadModel):
    faults = iter([RuntimeError("metal says no")])

    def break_once(step: Step, hidden: mx.array) -> mx.array:
        if step.offset == 12:
            for error in faults:
                raise error
        return hidden

    subject = workload(changed(load_model, break_once), max_batch_rows=2)
    async with running(subject) as engine:
        outboxes = [submit(engine, request(name, max_tokens=50)) for name in ("a", "b", "c")]
        assert isinstance(failure_of(await drain(outboxes[0])), InternalError)
        assert isinstance(failure_of(await drain(outboxes[1])), InternalError)
        assert isinstance((await drain(outboxes[2]))[-1], Completed)
        assert isinstance((await generate(engine, request("d")))[-1], Completed)
        assert cache_bytes(subject) == 0


async def test_logits_that_are_not_numbers_end_their_row_only(load_model: LoadModel):
    def spoil(step: Step, hidden: mx.array) -> mx.array:
        return hidden * float("nan") if step.plan.rows[0].slot == 1 and step.offset == 10 else hidden

    async with running(workload(changed(load_model, spoil))) as engine:
        expected = text_of(await generate(engine, request()))
        good, bad = submit(engine, request("good")), submit(engine, request("bad"))
        assert isinstance(failure_of(await drain(bad)), InternalError)
        assert text_of(await drain(good)) == expected
        assert isinstance((await generate(engine, request("next")))[-1], Completed)


async def test_no_forward_is_computed_past_the_last_token(load_model: LoadModel):
    offsets: list[int] = []

    def note(step: Step, hidden: mx.array) -> mx.array:
        offsets.append(step.offset)
        return hidden

    async with running(workload(changed(load_model, note))) as engine:
        await generate(engine, request(max_tokens=3))
    assert offsets == [0, 7, 8]


class SlowConstraint:
    """Notes its calls, and waits in `advance` until the next forward was started."""

    def __init__(self, notes: list[str], started: threading.Event) -> None:
        self._notes = notes
        self._started = started

    def advance(self, token_id: int) -> None:
        overlaps = self._started.wait(5)
        self._notes.append("advance while the device works" if overlaps else "advance before the device works")
        self._started.clear()

    def mask(self) -> None:
        self._notes.append("mask")


@pytest.mark.parametrize("device", ["cpu", "metal"])
async def test_constraints_work_while_the_device_computes_the_next_forward(
    load_model: LoadModel, device: str, monkeypatch: pytest.MonkeyPatch
):
    notes: list[str] = []
    started = threading.Event()
    start = Row.start

    def noted_start(row: Row) -> None:
        notes.append(f"start {row.sequence.position - 7}")
        started.set()
        start(row)

    monkeypatch.setattr(Row, "start", noted_start)

    def load_for(report: Callable[[LoadProgress], None]) -> LoadedModel:
        return replace(load_model(report), device=device)

    subject = TextWorkload(load_for, TextSettings(), constrain=lambda _: SlowConstraint(notes, started))
    async with running(subject) as engine:
        expected = tokens_of(await generate(engine, request("plain", max_tokens=3, token_details=True)))
    notes.clear()
    async with running(subject) as engine:
        assert tokens_of(await generate(engine, request(max_tokens=3, token_details=True))) == expected
    first = 1 if device == "cpu" else 0  # there the token is read, and so counted, before the start
    turn = ["advance while the device works", "mask"]
    assert notes == ["mask", f"start {first}", *turn, f"start {first + 1}", *turn]


async def test_on_the_cpu_a_row_that_ends_computes_no_further_forward(
    load_model: LoadModel, monkeypatch: pytest.MonkeyPatch
):
    starts: list[int] = []
    start = Row.start

    def noted_start(row: Row) -> None:
        starts.append(row.sequence.position)
        start(row)

    monkeypatch.setattr(Row, "start", noted_start)
    async with running(workload(load_model)) as engine:
        plain = tokens_of(await generate(engine, request(max_tokens=4, token_details=True)))
        starts.clear()
        await generate(engine, request(stopping=StoppingSettings(20, eos_token_ids=frozenset({plain[2]}))))
    assert starts == [8, 9]


class OnlyThese:
    """Lets the tokens of a word come in order."""

    def __init__(self, word: str) -> None:
        self._left = list(word.encode())

    def advance(self, token_id: int) -> None:
        self._left.pop(0)

    def mask(self) -> list[bool]:
        return [token_id == self._left[0] for token_id in range(VOCAB_SIZE)]


async def test_a_constraint_decides_each_token(load_model: LoadModel):
    ids = [64, 70, 66]
    subject = TextWorkload(load_model, TextSettings(), constrain=lambda _: OnlyThese(bytes(ids).decode()))
    async with running(subject) as engine:
        events = await generate(engine, request(max_tokens=3, token_details=True, sampling=SamplingSettings(seed=8)))
    assert tokens_of(events) == ids


async def test_a_decoding_row_gets_a_token_for_each_chunk_of_anothers_prompt(load_model: LoadModel):
    subject = workload(load_model, prefill_chunk_tokens=4)
    async with running(subject) as engine:
        stream = submit(engine, request("a", max_tokens=3000))
        await eventually(lambda: subject.counts().completion_tokens_total > 3)
        before = subject.counts()
        await generate(engine, request("b", prompt=LONG_PROMPT, max_tokens=1))
        after = subject.counts()
        engine.cancel("a", CancelledByOperator("a"))
        await drain(stream)
    assert after.completion_tokens_total - before.completion_tokens_total >= len(LONG_PROMPT) // 4


async def test_stopping_frees_the_model(load_model: LoadModel):
    subject = workload(load_model)
    async with running(subject) as engine:
        outbox = submit(engine, request(max_tokens=4000))
        await eventually(lambda: subject.counts().completion_tokens_total > 0)
        assert await engine.stop(0.01) == 1
        assert isinstance(failure_of(await drain(outbox)), ModelUnloading)
        assert subject._loaded is None


async def test_views_tell_what_a_request_did_so_far(load_model: LoadModel):
    subject = workload(load_model, max_batch_rows=1)
    async with running(subject) as engine:
        submit(engine, request("a", max_tokens=4000))
        submit(engine, request("b"))
        await eventually(lambda: subject.counts().completion_tokens_total > 0)
        first, second = engine.requests()
        assert (first.request_id, first.state, first.usage.prompt_tokens) == ("a", "decoding", 7)
        assert (second.request_id, second.state, second.usage) == ("b", "queued", Usage(7, 0))
