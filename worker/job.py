"""What the engine and a workload say to each other about one request, and the workload's side of the contract."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from worker.claim import Claim
from worker.errors import DeadlineExceeded, SlowReader, WorkerError
from worker.events import Event, Usage
from worker.outbox import Outbox


class Request(Protocol):
    """What the engine must know of a request, whatever its kind."""

    @property
    def key(self) -> str:
        """Unique among the requests in flight, whatever ids their callers gave."""
        ...

    @property
    def deadline(self) -> float | None:
        """In seconds of the engine's clock."""
        ...


R = TypeVar("R", bound=Request)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job(Generic[R]):
    """One request inside the engine.

    Attributes:
        submitted: when it came, in seconds of the engine's clock.
        full_since: since when its reader has been behind; None: it is not.
    """

    request: R
    outbox: Outbox
    submitted: float
    full_since: float | None = None

    def overdue(self, now: float, slow_reader_s: float) -> WorkerError | None:
        """Return why the job must end now, if it must; notes since when its reader is behind."""
        if self.request.deadline is not None and now >= self.request.deadline:
            return DeadlineExceeded()
        if not self.outbox.is_full:
            self.full_since = None
        elif self.full_since is None:
            self.full_since = now
        elif now - self.full_since >= slow_reader_s:
            return SlowReader(now - self.full_since)
        return None

    def moments(self, slow_reader_s: float) -> list[float]:
        """Return when it may become overdue."""
        slow = [] if self.full_since is None else [self.full_since + slow_reader_s]
        return slow if self.request.deadline is None else [*slow, self.request.deadline]


@dataclass(frozen=True, slots=True)
class RequestView:
    """What can be said of a request in flight. `state` is a word: queued, prefilling, decoding or paused."""

    key: str
    request_id: str
    state: str
    submitted: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of durations: `counts` has one entry for each upper bound, and one for what is longer."""

    name: str
    bounds_us: tuple[int, ...]
    counts: tuple[int, ...]
    total_us: int


@dataclass(frozen=True, slots=True)
class Counts:
    """A workload's totals; requests that ended count too where the name says total.

    Attributes:
        prompt_tokens_total: of prompts that were computed or found, the found ones among them.
        audio_us_total: of audio that requests for speech brought.
        step_tokens: of the step that is being computed now; 0 between steps.
        used_cache_tokens: whose keys and values the running sequences hold.
        total_cache_tokens: whose keys and values they could hold together.
        cache_bytes: of keys and values in memory, those of earlier requests among them.
        prefix_bytes: of these, what earlier requests left behind.
        adapters_bytes: of mounted adapters.
        expert_slab_bytes: of routed experts in slabs.
        mapped_expert_bytes: of routed experts in a file that is mapped.
        expert_hit_ratio: of experts that steps needed, the share that lay in slabs, 0 to 1; 0 where there are none.
        expert_bytes_read_total: of experts that were read.
        expert_stall_us_total: how long steps waited for them.
        evictions_total: blocks of earlier requests that had to go for others.
        prefill_tokens_per_second: of the time spent on prompts lately.
        decode_tokens_per_second: of the time spent on output lately, all sequences together.
    """

    running: int = 0
    queued: int = 0
    prompt_tokens_total: int = 0
    cached_prompt_tokens_total: int = 0
    completion_tokens_total: int = 0
    drafted_tokens_total: int = 0
    accepted_draft_tokens_total: int = 0
    audio_us_total: int = 0
    step_tokens: int = 0
    used_cache_tokens: int = 0
    total_cache_tokens: int = 0
    cache_bytes: int = 0
    prefix_bytes: int = 0
    adapters_bytes: int = 0
    expert_slab_bytes: int = 0
    mapped_expert_bytes: int = 0
    expert_hit_ratio: float = 0.0
    expert_bytes_read_total: int = 0
    expert_stall_us_total: int = 0
    evictions_total: int = 0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    durations: tuple[Durations, ...] = ()


class Plan(Protocol):
    """One tick's work."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Whose work it is: these requests fail when the tick does."""
        ...


P = TypeVar("P", bound=Plan)


class Reporter(Protocol[R]):
    """How a running tick tells the engine what happened."""

    def post(self, job: Job[R], event: Event) -> None:
        """Send an event to the reader of a job; `Completed` and `Failed` end the job."""
        ...

    def flush(self) -> None:
        """Send what was posted now: called where the tick goes on with something long."""
        ...

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Have plain Python done on another thread while this one waits for the device."""
        ...

    def tick(self) -> None:
        """Say that work moves: a chunk, a row's step, a window."""
        ...


class Workload(Protocol[R, P]):
    """A kind of work.

    All methods but `view` and `counts` are called on the engine's thread, and `load` before the others.

    A job belongs to the workload from `admit` until it posts the job's last event or `drop` is called.
    """

    @property
    def max_jobs(self) -> int:
        """How many jobs may run and wait at once; read on the event loop."""
        ...

    def load(self, report: Callable[[object], None]) -> object:
        """Make ready; calls `report` with its progress and returns what `Engine.load` returns."""
        ...

    def admit(self, job: Job[R]) -> None:
        """Queue a job. Raises a `WorkerError` to refuse it."""
        ...

    def claim(self) -> Claim:
        """Say how urgent the next tick's work is, among that of workers that share the device."""
        ...

    def plan(self, burst_s: float | None = None) -> P | None:
        """Choose the next tick's work; None when there is none for now. Reserves nothing that `drop` cannot free.

        Args:
            burst_s: how long the tick should take at most, as far as work can be cut; None: as long as is best.
        """
        ...

    def run(self, plan: P, reporter: Reporter[R]) -> None:
        """Do one tick's work."""
        ...

    def drop(self, key: str) -> Usage:
        """Forget a job and free what it holds, whatever state it is in, and say what it consumed."""
        ...

    def view(self, job: Job[R]) -> RequestView:
        """Describe a job; called on the event loop, so it only reads."""
        ...

    def counts(self) -> Counts:
        """Count; called on the event loop, so it only reads."""
        ...

    def recover(self) -> None:
        """Give back what a failed tick may have left, once its jobs are dropped."""
        ...

    def close(self) -> None:
        """Free everything; the last call."""
        ...
