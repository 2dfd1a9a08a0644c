"""The engine over a workload that only counts: no model, no device."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field

import pytest

from tests.support.waiting import eventually
from worker.engine import Engine, EngineState
from worker.errors import (
    CancelledByOperator,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    ModelLoading,
    ModelUnloading,
    QueueFull,
    SlowReader,
)
from worker.events import Completed, Event, Failed, Started, TextDelta, Timing, Usage
from worker.job import Counts, Job, Reporter, RequestView
from worker.outbox import Outbox

WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class CountTo:
    request_id: str
    limit: int
    deadline: float | None = None
    number: int | None = None

    @property
    def key(self) -> str:
        return self.request_id if self.number is None else f"{self.request_id}/{self.number}"


@dataclass(frozen=True, slots=True)
class CountPlan:
    keys: tuple[str, ...]


@dataclass
class Counting:
    """Counts each job up by one a tick. `gate` holds ticks back; `fault` may raise within them."""

    max_jobs: int = 4
    max_rows: int = 2
    gate: threading.Event = field(default_factory=threading.Event)
    load_gate: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[CountPlan], None] = lambda _: None
    load_fault: Callable[[], None] = lambda: None
    threads: set[int] = field(default_factory=set[int])
    jobs: dict[str, tuple[Job[CountTo], int]] = field(default_factory=dict[str, tuple[Job[CountTo], int]])
    dropped: list[str] = field(default_factory=list[str])
    started: list[str] = field(default_factory=list[str])
    num_recoveries: int = 0
    is_closed: bool = False

    def load(self, report: Callable[[object], None]) -> str:
        self._note_thread()
        report("half")
        self.load_gate.wait(WAIT_S)
        self.load_fault()
        return "loaded"

    def admit(self, job: Job[CountTo]) -> None:
        self._note_thread()
        if job.request.limit > 10**9:
            raise ContextTooLong(job.request.limit, 10**9)
        self.jobs[job.request.key] = (job, 0)

    def plan(self) -> CountPlan | None:
        ready = [key for key, (job, _) in self.jobs.items() if not job.outbox.is_full]
        return CountPlan(tuple(ready[: self.max_rows])) if ready else None

    def run(self, plan: CountPlan, reporter: Reporter[CountTo]) -> None:
        self._note_thread()
        self.gate.wait(WAIT_S)
        self.fault(plan)
        for request_id in plan.keys:
            job, count = self.jobs[request_id]
            if count == 0:
                self.started.append(request_id)
                reporter.post(job, Started(0, 0))
            self.jobs[request_id] = (job, count + 1)
            reporter.post(job, TextDelta("1", (), 1))
            reporter.tick()
            if count + 1 == job.request.limit:
                del self.jobs[request_id]
                reporter.post(job, Completed(Usage(0, count + 1), Timing()))

    def drop(self, key: str) -> Usage:
        self._note_thread()
        self.dropped.append(key)
        return Usage(0, self.jobs.pop(key)[1])

    def view(self, job: Job[CountTo]) -> RequestView:
        return RequestView(job.request.key, job.request.request_id, "queued", job.submitted, Usage())

    def counts(self) -> Counts:
        return Counts(queued=len(self.jobs))

    def recover(self) -> None:
        self.num_recoveries += 1

    def close(self) -> None:
        self._note_thread()
        self.is_closed = True

    def _note_thread(self) -> None:
        self.threads.add(threading.get_ident())


CountingEngine = Engine[CountTo, CountPlan]


@contextlib.asynccontextmanager
async def running(workload: Counting, **options: object) -> AsyncGenerator[CountingEngine]:
    engine: CountingEngine = Engine(workload, asyncio.get_running_loop(), **options)  # pyright: ignore[reportArgumentType]
    workload.load_gate.set()
    engine.start()
    await asyncio.wait_for(engine.load(), WAIT_S)
    try:
        yield engine
    finally:
        workload.gate.set()
        await engine.stop(0)


@pytest.fixture
def open_gate() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def submit(engine: CountingEngine, request: CountTo, max_bytes: int = 1 << 20) -> Outbox:
    outbox = Outbox(max_bytes)
    engine.submit(request, outbox)
    return outbox


async def last_of(outbox: Outbox) -> Event:
    async with asyncio.timeout(WAIT_S):
        while not isinstance(event := await outbox.take(), Completed | Failed):
            pass
    return event


async def failure_of(outbox: Outbox) -> Exception:
    event = await last_of(outbox)
    assert isinstance(event, Failed)
    return event.error


def soon(seconds: float = 0.05) -> float:
    return time.monotonic() + seconds


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

    def plan() -> CountPlan | None:
        for error in plans:
            raise error
        return usual()

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
        workload.plan = lambda: CountPlan(("a", "b"))
        workload.gate.set()
        for outbox in outboxes:
            await failure_of(outbox)
        await eventually(lambda: calls == ["fatal"])


async def test_the_lease_is_held_for_each_step(open_gate: threading.Event):
    held: list[str] = []

    @contextlib.contextmanager
    def lease() -> Generator[None]:
        held.append("in")
        yield
        held.append("out")

    async with running(Counting(gate=open_gate), lease=lease) as engine:
        await last_of(submit(engine, CountTo("a", 2)))
    assert held == ["in", "out"] * 2


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
