"""A text workload that a test ticks by hand: no thread, no event loop, and a clock that only the test moves."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from models.layers.cache import Cache
from models.layers.paged_cache import PagedCache
from models.layers.row_cache import RowCache
from models.registry import LoadedModel
from worker.events import Completed, Event, Failed, Usage
from worker.job import Job, RequestView
from worker.outbox import Outbox
from worker.scheduler import TextPlan
from worker.sequence import Constraint, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

T = TypeVar("T")
TICK_S = 0.001
MAX_TICKS = 20_000


class StalledError(AssertionError):
    """Raised when requests are left and nothing moves them."""


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Driven:
    """Ticks a workload and keeps what it tells.

    Args:
        loaded: the model; many workloads may share it.
        settings: of the workload.
        make: makes the workload.
        constrain: makes what restricts a request's sequences; None: nothing does.

    Attributes:
        events: of each request by its key, as posted.
        plans: one for each tick that did something.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: TextSettings | None = None,
        *,
        make: Callable[..., TextWorkload] = TextWorkload,
        constrain: Callable[[TextRequest], Constraint] | None = None,
    ) -> None:
        self.clock = Clock()
        self.events: dict[str, list[Event]] = {}
        self.plans: list[TextPlan] = []
        self._jobs: dict[str, Job[TextRequest]] = {}
        self._constrain = constrain
        self.workload = make(lambda _: loaded, settings or TextSettings(), clock=self.clock)
        self.workload.load(lambda _: None)

    @property
    def cache(self) -> Cache:
        return self.workload._ready.cache

    @property
    def prefix_bytes(self) -> int:
        return self.workload._ready.prefixes.nbytes

    def admit(self, wanted: TextRequest, max_bytes: int = 1 << 20) -> None:
        if (constrain := self._constrain) is not None:
            wanted = replace(wanted, make_constraint=lambda: constrain(wanted))
        job = Job(wanted, Outbox(max_bytes), self.clock())
        self._jobs[wanted.key] = job
        self.events[wanted.key] = []
        self.workload.admit(job)

    def cancel(self, key: str) -> Usage:
        del self._jobs[key]
        return self.workload.drop(key)

    def tick_once(self) -> bool:
        """Do one tick; return whether there was work."""
        self.clock.now += TICK_S
        plan = self.workload.plan()
        if plan is None:
            return False
        self.plans.append(plan)
        self.workload.run(plan, self)
        return True

    def finish(self) -> None:
        """Tick until all requests have ended.

        Raises:
            StalledError: they do not.
        """
        for _ in range(MAX_TICKS):
            if not self._jobs:
                return
            if not self.tick_once():
                raise StalledError(f"nothing moves {', '.join(self._jobs)}")
        raise StalledError(f"{', '.join(self._jobs)} never end")

    def until(self, predicate: Callable[[], bool]) -> None:
        """Tick until something holds."""
        for _ in range(MAX_TICKS):
            if predicate():
                return
            self.tick_once()
        raise StalledError("it never holds")

    def generate(self, wanted: TextRequest) -> list[Event]:
        """Run one request to its end."""
        self.admit(wanted)
        self.finish()
        return self.events[wanted.key]

    def read(self, key: str) -> None:
        """Take all that waits in a request's outbox."""
        if (job := self._jobs.get(key)) is None:
            return
        while job.outbox.waiting_bytes:
            taking = job.outbox.take()
            try:
                taking.send(None)  # there is something, so it does not wait
            except StopIteration:
                continue
            taking.close()
            raise StalledError("an outbox has bytes and no event")

    def view(self, key: str) -> RequestView:
        return self.workload.view(self._jobs[key])

    def state(self, key: str) -> str:
        return self.view(key).state

    def states(self) -> list[str]:
        return [self.state(key) for key in self._jobs]

    def assert_nothing_is_held(self) -> None:
        """Assert that ended requests hold nothing, and that the prefix cache lets go of what it holds."""
        counts = self.workload.counts()
        scheduler = self.workload._scheduler
        assert (counts.running, counts.queued, counts.used_cache_tokens) == (0, 0, 0)
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        cache, prefix_bytes = self.cache, self.prefix_bytes
        # A part counts what a window has left behind too.
        has_window = any(layer.window for layer in self.workload._ready.model.model.attention_layers)
        fits = cache.nbytes <= prefix_bytes if has_window else cache.nbytes == prefix_bytes
        assert fits, "ended requests hold blocks"
        assert promised(cache) == 0, "room is promised to nobody"
        self.workload.close()
        assert cache.nbytes == 0, "blocks are held after the end"

    # What a workload reports to.

    def post(self, job: Job[TextRequest], event: Event) -> None:
        assert self._jobs.get(job.request.key) is job, f"{event} after the end"
        job.outbox.charge(event)
        job.outbox.put(event)
        self.events[job.request.key].append(event)
        if isinstance(event, Completed | Failed):
            del self._jobs[job.request.key]

    def flush(self) -> None:
        """Nothing waits."""

    def aside(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(work())
        return future

    def tick(self) -> None:
        """The engine counts it."""


def promised(cache: Cache) -> int:
    """Return the room that is promised to slots and not taken."""
    if isinstance(cache, PagedCache):
        return sum(group.blocks.num_promised for group in cache.groups)
    assert isinstance(cache, RowCache)
    return sum(cache._promised)
