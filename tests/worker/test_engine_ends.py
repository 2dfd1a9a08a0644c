"""Cancellation, deadlines, slow readers and stops end requests of an engine."""

import asyncio
import threading
import time

import pytest

from tests.support.waiting import eventually
from tests.worker.counting import WAIT_S, Counting, CountTo, failure_of, last_of, running, soon, submit
from worker.engine import EngineState
from worker.errors import (
    CancelledByOperator,
    DeadlineExceeded,
    ModelUnloading,
    SlowReader,
)
from worker.events import Completed, Failed, Timing, Usage


async def test_a_running_request_is_cancelled_with_what_it_used(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 10**9))
        await eventually(lambda: workload.started == ["a"])
        assert engine.cancel("a", CancelledByOperator("a"))
        event = await last_of(outbox)
        assert isinstance(event, Failed)
        assert isinstance(event.error, CancelledByOperator)
        assert event.usage.completion_tokens > 0
        assert workload.dropped == ["a"]


async def test_a_queued_request_is_cancelled_before_it_starts(open_gate: threading.Event):
    workload = Counting(gate=open_gate, max_rows=1)
    async with running(workload) as engine:
        submit(engine, CountTo("a", 10**9))
        outbox = submit(engine, CountTo("b", 1))
        engine.cancel("b", CancelledByOperator("b"))
        assert isinstance(await failure_of(outbox), CancelledByOperator)
    assert "b" not in workload.started


async def test_cancelling_what_is_not_there_finds_nothing(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        assert not engine.cancel("nobody", DeadlineExceeded())


async def test_a_deadline_in_the_past_never_starts(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        assert isinstance(await failure_of(submit(engine, CountTo("a", 1, time.monotonic() - 1))), DeadlineExceeded)
    assert workload.started == []


async def test_a_deadline_ends_a_running_request(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        assert isinstance(await failure_of(submit(engine, CountTo("a", 10**9, soon()))), DeadlineExceeded)


async def test_a_deadline_ends_a_queued_request(open_gate: threading.Event):
    workload = Counting(gate=open_gate, max_rows=1)
    async with running(workload) as engine:
        submit(engine, CountTo("a", 10**9))
        assert isinstance(await failure_of(submit(engine, CountTo("b", 1, soon()))), DeadlineExceeded)
    assert workload.started == ["a"]


async def test_a_deadline_is_noticed_while_everything_is_paused(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        outbox = submit(engine, CountTo("a", 10**9, soon()), max_bytes=1)
        await eventually(lambda: engine.requests() == [])
        assert isinstance(await failure_of(outbox), DeadlineExceeded)


async def test_a_full_outbox_pauses_its_job_and_room_lets_it_go_on(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 9), max_bytes=3)
        await eventually(lambda: outbox.is_full)
        assert workload.jobs["a"][1] == 3
        assert await last_of(outbox) == Completed(Usage(0, 9), Timing())


async def test_a_paused_job_holds_up_no_other(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        stuck = submit(engine, CountTo("a", 9), max_bytes=1)
        assert isinstance(await last_of(submit(engine, CountTo("b", 50))), Completed)
        assert stuck.is_full


async def test_a_reader_that_takes_nothing_is_given_up(open_gate: threading.Event):
    async with running(Counting(gate=open_gate), slow_reader_s=0.05) as engine:
        outbox = submit(engine, CountTo("a", 9), max_bytes=1)
        await eventually(lambda: engine.requests() == [])
        assert isinstance(await failure_of(outbox), SlowReader)


async def test_ticks_show_life_while_every_reader_is_behind(
    open_gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.engine.PAUSED_WAIT_S", 0.01)
    async with running(Counting(gate=open_gate)) as engine:
        outbox = submit(engine, CountTo("a", 9), max_bytes=1)
        await eventually(lambda: outbox.is_full)
        ticks = engine.ticks
        await eventually(lambda: engine.ticks > ticks + 3)


async def test_stopping_finishes_what_runs_and_refuses_the_rest():
    workload = Counting()
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 5))
        stopping = asyncio.create_task(engine.stop(WAIT_S))
        await eventually(lambda: engine.state is EngineState.STOPPING)
        with pytest.raises(ModelUnloading):
            submit(engine, CountTo("b", 1))
        workload.gate.set()
        assert isinstance(await last_of(outbox), Completed)
        assert await stopping == 0
    assert workload.is_closed


async def test_stopping_ends_what_outlives_the_grace(open_gate: threading.Event):
    workload = Counting(gate=open_gate, max_rows=1)
    async with running(workload) as engine:
        outboxes = [submit(engine, CountTo(name, 10**9)) for name in "ab"]
        assert await engine.stop(0.05) == 2
        assert [type(await failure_of(outbox)) for outbox in outboxes] == [ModelUnloading, ModelUnloading]
        assert not engine._thread.is_alive()


async def test_a_second_stop_shortens_the_grace(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        outbox = submit(engine, CountTo("a", 10**9))
        first = asyncio.create_task(engine.stop(60))
        await eventually(lambda: engine.state is EngineState.STOPPING)
        assert await engine.stop(0) == 1
        assert await asyncio.wait_for(first, WAIT_S) == 1
        assert isinstance(await failure_of(outbox), ModelUnloading)


async def test_a_hanging_thread_keeps_no_reader_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.engine.JOIN_S", 0.05)
    async with running(Counting()) as engine:
        outbox = submit(engine, CountTo("a", 1))
        assert await engine.stop(0) == 1
        assert isinstance(await failure_of(outbox), ModelUnloading)
