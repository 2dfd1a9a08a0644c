"""The engine over a workload that only counts: no model, no device."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import eventually
from tests.worker.counting import WAIT_S, Counting, CountingEngine, CountTo, failure_of, last_of, running, soon, submit
from tests.worker.turning import NotedTurn
from worker.engine import Engine
from worker.errors import (
    CancelledByOperator,
    ContextTooLong,
    DeadlineExceeded,
    ModelLoading,
    ModelUnloading,
    QueueFull,
)
from worker.events import Completed, Timing, Usage


async def test_a_request_runs_to_its_end(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        assert await last_of(submit(engine, CountTo("a", 3))) == Completed(Usage(0, 3), Timing())
        assert engine.requests() == []


async def test_all_work_is_on_one_thread_that_is_not_the_loops(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        await last_of(submit(engine, CountTo("a", 3)))
        submit(engine, CountTo("b", 10**6))
        engine.cancel("b", DeadlineExceeded())
    assert len(workload.threads) == 1
    assert threading.get_ident() not in workload.threads


async def test_counters_grow_with_work(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        ticks = engine.ticks
        await last_of(submit(engine, CountTo("a", 5)))
        assert engine.steps == 5
        assert engine.ticks >= ticks + 5


async def test_an_idle_engine_does_not_poll(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        await last_of(submit(engine, CountTo("a", 1)))
        submit(engine, CountTo("b", 1))
        await eventually(lambda: engine.requests() == [])
        await eventually(lambda: engine._commands.qsize() == 0)
        ticks = engine.ticks
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)
        assert engine.ticks <= ticks + 1


async def test_the_loop_is_woken_once_a_step(monkeypatch: pytest.MonkeyPatch):
    workload = Counting()
    async with running(workload) as engine:
        wakes: list[int] = []
        wake = engine._call

        def counted(function: Callable[..., None], *arguments: object) -> None:
            wakes.append(engine.steps)
            wake(function, *arguments)

        monkeypatch.setattr(engine, "_call", counted)
        outboxes = [submit(engine, CountTo(name, 5)) for name in "ab"]
        workload.gate.set()
        for outbox in outboxes:
            await last_of(outbox)
        assert len(wakes) == len(set(wakes))


async def test_nothing_is_taken_before_the_load():
    workload = Counting()
    engine: CountingEngine = Engine(workload, asyncio.get_running_loop())
    engine.start()
    with pytest.raises(ModelLoading):
        submit(engine, CountTo("a", 1))
    await eventually(lambda: engine.load_progress == "half")
    assert engine.ticks == 1
    workload.load_gate.set()
    assert await asyncio.wait_for(engine.load(), WAIT_S) == "loaded"
    await engine.stop(0)


async def test_a_failed_load_is_raised_where_it_is_waited_for():
    def fail() -> None:
        raise OSError("no such file")

    workload = Counting(load_fault=fail)
    workload.load_gate.set()
    engine: CountingEngine = Engine(workload, asyncio.get_running_loop())
    engine.start()
    with pytest.raises(OSError, match="no such file"):
        await asyncio.wait_for(engine.load(), WAIT_S)
    with pytest.raises(ModelUnloading):
        submit(engine, CountTo("a", 1))
    assert await engine.stop(1) == 0


async def test_one_id_may_run_twice_and_each_is_cancelled_by_its_key(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        left = submit(engine, CountTo("a", 10**9, number=1))
        retried = submit(engine, CountTo("a", 10**9, number=2))
        engine.cancel("a/1", CancelledByOperator("a"))
        assert isinstance(await failure_of(left), CancelledByOperator)
        assert [(view.key, view.request_id) for view in engine.requests()] == [("a/2", "a")]
        engine.cancel("a/2", CancelledByOperator("a"))
        assert isinstance(await failure_of(retried), CancelledByOperator)


async def test_more_than_may_wait_is_refused_with_the_depth():
    async with running(Counting(max_jobs=3)) as engine:
        for name in "abc":
            submit(engine, CountTo(name, 1))
        with pytest.raises(QueueFull) as caught:
            submit(engine, CountTo("d", 1))
        assert caught.value.metadata == {"depth": "3"}


async def test_what_the_workload_refuses_ends_at_once_and_never_starts(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        assert isinstance(await failure_of(submit(engine, CountTo("a", 10**10))), ContextTooLong)
        assert engine.requests() == []
    assert workload.started == []


async def test_each_step_takes_the_turn_and_ends_with_it(open_gate: threading.Event):
    turn = NotedTurn()
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        await last_of(submit(engine, CountTo("a", 2)))
    noted = [what for what in turn.noted if what != "rest"]
    assert noted[:5] == ["begin", "take", "give", "take", "give"]
    assert noted[-1] == "close"


async def test_an_engine_with_nothing_to_do_lets_its_turn_rest(open_gate: threading.Event):
    turn = NotedTurn()
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        await last_of(submit(engine, CountTo("a", 1)))
        await eventually(lambda: turn.noted[-1] == "rest")


async def test_nothing_is_computed_without_the_turn_and_all_of_it_with_it(open_gate: threading.Event):
    turn, workload = NotedTurn(is_free=False), Counting(gate=open_gate)
    async with running(workload, turn=turn) as engine:
        outbox = submit(engine, CountTo("a", 1))
        await eventually(lambda: "ask" in turn.noted)
        assert (engine.steps, workload.started) == (0, [])
        turn.is_free = True
        turn.wake()
        assert isinstance(await last_of(outbox), Completed)


async def test_who_waits_for_the_turn_can_be_cancelled_and_has_its_deadline(open_gate: threading.Event):
    turn = NotedTurn(is_free=False)
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        cancelled = submit(engine, CountTo("a", 1))
        late = submit(engine, CountTo("b", 1, soon()))
        engine.cancel("a", CancelledByOperator("a"))
        assert isinstance(await failure_of(cancelled), CancelledByOperator)
        assert isinstance(await failure_of(late), DeadlineExceeded)
        assert engine.steps == 0


async def test_an_engine_that_waits_for_the_turn_shows_that_it_lives(open_gate: threading.Event):
    turn = NotedTurn(is_free=False)
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        submit(engine, CountTo("a", 1))
        await eventually(lambda: "ask" in turn.noted)
        ticks = engine.ticks
        await eventually(lambda: engine.ticks > ticks, WAIT_S)


async def test_an_engine_that_waits_for_the_turn_does_not_poll(open_gate: threading.Event):
    turn = NotedTurn()
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        submit(engine, CountTo("a", 10**9))
        await eventually(lambda: engine.steps > 0)
        turn.is_free = False  # another has it now
        await eventually(lambda: "ask" in turn.noted)
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)
        assert turn.noted.count("ask") <= 3


async def test_an_engine_that_waits_for_the_turn_stops(open_gate: threading.Event):
    turn = NotedTurn(is_free=False)
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        outbox = submit(engine, CountTo("a", 1))
        await eventually(lambda: "ask" in turn.noted)
        assert await engine.stop(0) == 1
        assert isinstance(await failure_of(outbox), ModelUnloading)
    assert turn.noted[-1] == "close"
