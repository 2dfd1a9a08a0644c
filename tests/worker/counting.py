"""Engines over a workload that only counts, and what their readers get."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from worker.claim import Claim
from worker.engine import Engine
from worker.errors import (
    ContextTooLong,
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

    def claim(self) -> Claim:
        return Claim.BULK

    def plan(self, burst_s: float | None = None) -> CountPlan | None:
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
