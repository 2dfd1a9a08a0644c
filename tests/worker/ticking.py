"""A workload that a test ticks by hand: no thread, no event loop, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from worker.events import Completed, Event, Failed, Usage
from worker.job import Job
from worker.outbox import Outbox

R = TypeVar("R", bound=Any)
W = TypeVar("W", bound=Any)
T = TypeVar("T")
TICK_S = 0.001
MAX_TICKS = 20_000
MAX_IDLE_TICKS = 3
MAX_BYTES = 1 << 20


class StalledError(AssertionError):
    """Raised when requests are left and nothing moves them."""


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Ticked(Generic[R, W]):
    """Ticks a workload and keeps what it tells.

    Args:
        make: makes the workload, given its clock.

    Attributes:
        jobs: of the requests that have not ended, by their keys.
        events: of each request by its key, as posted.
        plans: one for each tick that did something.
        burst_s: how long ticks should take, as the engine says while other processes wait for the device.
    """

    def __init__(self, make: Callable[[Clock], W]) -> None:
        self.clock = Clock()
        self.jobs: dict[str, Job[R]] = {}
        self.events: dict[str, list[Event]] = {}
        self.plans: list[Any] = []
        self.burst_s: float | None = None
        self.workload = make(self.clock)
        self.workload.load(lambda _: None)

    def admit(self, wanted: R, max_bytes: int = MAX_BYTES) -> None:
        job = Job(wanted, Outbox(max_bytes), self.clock())
        self.jobs[wanted.key] = job
        self.events[wanted.key] = []
        self.workload.admit(job)

    def cancel(self, key: str) -> Usage:
        del self.jobs[key]
        return self.workload.drop(key)

    def tick_once(self) -> bool:
        """Do one tick; return whether there was work."""
        self.clock.now += TICK_S
        plan = self.workload.plan(self.burst_s)
        if plan is None:
            return False
        self.plans.append(plan)
        self.workload.run(plan, self)
        return True

    def until(self, predicate: Callable[[], bool]) -> None:
        """Tick until something holds; a second look, as a wake-up has the engine take, before nothing moves.

        Raises:
            StalledError: it never does.
        """
        num_idle = 0
        for _ in range(MAX_TICKS):
            if predicate():
                return
            num_idle = 0 if self.tick_once() else num_idle + 1
            if num_idle == MAX_IDLE_TICKS:
                raise StalledError(f"nothing moves {', '.join(self.jobs)}")
        raise StalledError(f"{', '.join(self.jobs)} never end")

    def finish(self) -> None:
        """Tick until all requests have ended."""
        self.until(lambda: not self.jobs)

    # What a workload reports to.

    def post(self, job: Job[R], event: Event) -> None:
        assert self.jobs.get(job.request.key) is job, f"{event} after the end"
        job.outbox.charge(event)
        job.outbox.put(event)
        self.events[job.request.key].append(event)
        if isinstance(event, Completed | Failed):
            del self.jobs[job.request.key]

    def flush(self) -> None:
        """Nothing waits."""

    def aside(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(work())
        return future

    def tick(self) -> None:
        """The engine counts it."""
