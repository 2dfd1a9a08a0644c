"""What fails in a step ends its jobs and spares the others."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import eventually
from tests.worker.counting import (
    WAIT_S,
    Counting,
    CountingEngine,
    CountPlan,
    CountTo,
    failure_of,
    last_of,
    running,
    submit,
)
from worker.engine import MAX_FAILURES_IN_A_ROW, Engine, EngineState
from worker.errors import (
    CheckpointCorrupt,
    InternalError,
    ModelUnloading,
)
from worker.events import Completed, Failed


def fail_once(times: int = 1) -> Callable[[CountPlan], None]:
    left = iter(range(times))

    def fault(_: CountPlan) -> None:
        if next(left, None) is not None:
            raise RuntimeError("/secret")

    return fault


async def test_a_failed_step_ends_its_jobs_and_spares_the_queued_one():
    workload = Counting(fault=fail_once())
    async with running(workload) as engine:
        outboxes = [submit(engine, CountTo(name, 3)) for name in "abc"]
        await eventually(lambda: len(workload.jobs) == 3)
        workload.gate.set()
        errors = [await failure_of(outbox) for outbox in outboxes[:2]]
        assert all(isinstance(error, InternalError) and "secret" not in error.message for error in errors)
        assert isinstance(await last_of(outboxes[2]), Completed)
        assert isinstance(await last_of(submit(engine, CountTo("d", 1))), Completed)
        assert workload.num_recoveries == 1
    assert workload.dropped == ["a", "b"]


async def test_two_failures_with_a_good_step_between_are_survived(open_gate: threading.Event):
    faults = iter([True, True, False, True, True, False])
    workload = Counting(gate=open_gate)

    def fault(_: CountPlan) -> None:
        if next(faults, False):
            raise RuntimeError

    workload.fault = fault
    async with running(workload) as engine:
        ended = [type(await last_of(submit(engine, CountTo(str(index), 1)))) for index in range(6)]
        assert ended == [Failed, Failed, Completed, Failed, Failed, Completed]
        assert engine.state is EngineState.READY


async def test_failures_that_the_workload_answers_for_are_told_as_they_are_and_are_never_fatal(
    open_gate: threading.Event,
):
    workload = Counting(gate=open_gate)

    def fault(_: CountPlan) -> None:
        raise CheckpointCorrupt("breaks off")

    workload.fault = fault
    async with running(workload) as engine:
        for index in range(2 * MAX_FAILURES_IN_A_ROW):
            error = await failure_of(submit(engine, CountTo(str(index), 1)))
            assert isinstance(error, CheckpointCorrupt)
        assert engine.state is EngineState.READY
        assert workload.num_recoveries == 2 * MAX_FAILURES_IN_A_ROW


async def test_three_failing_steps_in_a_row_are_fatal_and_every_job_gets_a_status():
    calls: list[str] = []
    workload = Counting(fault=fail_once(3), max_rows=1)
    async with running(workload, on_fatal=lambda: calls.append("fatal")) as engine:
        outboxes = [submit(engine, CountTo(name, 3)) for name in "abcd"]
        await eventually(lambda: len(workload.jobs) == 4)
        workload.gate.set()
        errors = [type(await failure_of(outbox)) for outbox in outboxes]
        assert errors == [InternalError, InternalError, InternalError, ModelUnloading]
        await eventually(lambda: calls == ["fatal"])
        assert engine.state is EngineState.BROKEN
        assert workload.is_closed
        with pytest.raises(ModelUnloading):
            submit(engine, CountTo("e", 1))


async def test_a_workload_that_cannot_even_plan_fails_all_its_jobs(open_gate: threading.Event):
    workload = Counting(gate=open_gate, max_rows=0)
    plans = iter([ZeroDivisionError()])
    usual = workload.plan

    def plan(burst_s: float | None = None) -> CountPlan | None:
        for error in plans:
            raise error
        return usual(burst_s)

    async with running(workload) as engine:
        workload.plan = plan
        assert isinstance(await failure_of(submit(engine, CountTo("a", 1))), InternalError)


async def test_a_workload_that_cannot_drop_breaks_the_engine_but_no_reader_waits():
    calls: list[str] = []
    workload = Counting(fault=fail_once())
    async with running(workload, on_fatal=lambda: calls.append("fatal")) as engine:
        outboxes = [submit(engine, CountTo(name, 3)) for name in "ab"]
        await eventually(lambda: len(workload.jobs) == 2)
        workload.jobs.pop("a")
        workload.plan = lambda burst_s=None: CountPlan(("a", "b"))
        workload.gate.set()
        for outbox in outboxes:
            await failure_of(outbox)
        await eventually(lambda: calls == ["fatal"])


class Panic(BaseException):
    """What native code raises when it gives up is no Exception."""


async def test_a_panic_in_a_step_ends_its_jobs_like_any_failure():
    panics = iter([Panic()])

    def fault(_: CountPlan) -> None:
        for panic in panics:
            raise panic

    workload = Counting(fault=fault)
    async with running(workload) as engine:
        workload.gate.set()
        assert isinstance(await failure_of(submit(engine, CountTo("a", 3))), InternalError)
        assert isinstance(await last_of(submit(engine, CountTo("b", 1))), Completed)


async def test_a_panic_in_the_load_is_raised_as_an_incident_where_it_is_waited_for():
    def fail() -> None:
        raise Panic

    workload = Counting(load_fault=fail)
    workload.load_gate.set()
    engine: CountingEngine = Engine(workload, asyncio.get_running_loop())
    engine.start()
    with pytest.raises(InternalError):
        await asyncio.wait_for(engine.load(), WAIT_S)
    assert await engine.stop(1) == 0
