"""Errands of the engine's thread: between two ticks, in their order, and told of in any case."""

import asyncio
import threading

import pytest

from tests.support.waiting import eventually
from tests.worker.counting import Counting, CountingEngine, CountTo, last_of, running, submit
from tests.worker.turning import NotedTurn
from worker.engine import Engine
from worker.errors import ClientGone, ModelLoading, ModelUnloading


async def test_an_errand_is_done_on_the_engines_thread_while_requests_run(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    async with running(workload) as engine:
        outbox = submit(engine, CountTo("a", 2000))
        assert {await engine.do(threading.get_ident)} == set(workload.threads)
        await last_of(outbox)
        assert {await engine.do(threading.get_ident)} == set(workload.threads)


async def test_an_errand_is_work_that_moves():
    async with running(Counting()) as engine:
        before = engine.ticks
        await engine.do(lambda: None)
        await engine.do(lambda: None)  # behind the first, and what is noted of it
        assert engine.ticks > before


async def test_what_an_errand_raises_is_raised_and_harms_nobody(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        with pytest.raises(ZeroDivisionError):
            await engine.do(lambda: 1 / 0)
        await last_of(submit(engine, CountTo("a", 3)))


async def test_errands_keep_their_order_behind_what_ends_a_request(open_gate: threading.Event):
    async with running(Counting(gate=open_gate)) as engine:
        submit(engine, CountTo("a", 10**6))
        engine.cancel("a", ClientGone())
        assert await engine.do(engine.requests) == []
        done: list[int] = []
        await asyncio.gather(*(engine.do(lambda number=number: done.append(number)) for number in range(100)))
        assert done == list(range(100))


async def test_an_errand_that_nobody_waits_for_any_more_is_left_out_or_done_to_its_end(open_gate: threading.Event):
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        may_end.wait(10)
        done.append("begun")

    async with running(Counting(gate=open_gate)) as engine:
        first = asyncio.create_task(engine.do(work))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(engine.do(lambda: done.append("not begun")))
        await asyncio.sleep(0)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        may_end.set()
        await engine.do(lambda: None)
        assert done == ["begun"]


async def test_nothing_is_done_before_the_load_and_after_the_end(open_gate: threading.Event):
    workload = Counting(gate=open_gate)
    engine: CountingEngine = Engine(workload, asyncio.get_running_loop())
    with pytest.raises(ModelLoading):
        await engine.do(lambda: None)
    engine.start()
    workload.load_gate.set()
    await engine.load()
    await engine.stop(0)
    with pytest.raises(ModelUnloading):
        await engine.do(lambda: None)


async def test_an_errand_waits_for_the_turn(open_gate: threading.Event):
    turn = NotedTurn(is_free=False)
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        asked = asyncio.create_task(engine.do(lambda: turn.noted.append("done")))
        await eventually(lambda: "ask" in turn.noted)
        assert "done" not in turn.noted
        turn.is_free = True
        turn.wake()
        await asked
    assert turn.noted.index("take") < turn.noted.index("done") < turn.noted.index("rest")


async def test_errands_of_an_engine_that_ends_are_done_all_the_same(open_gate: threading.Event):
    turn = NotedTurn(is_free=False)
    async with running(Counting(gate=open_gate), turn=turn) as engine:
        asked = asyncio.create_task(engine.do(lambda: 7))
        await eventually(lambda: "ask" in turn.noted)
        await engine.stop(0)
        assert await asked == 7
