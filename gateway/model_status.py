"""What the parts of the gateway tell each other about models and their workers: plain values, no behaviour."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from pomona.v1 import worker_pb2_grpc

if TYPE_CHECKING:
    import grpc.aio
    from pomona.v1 import model_pb2, server_pb2

    from gateway.errors import GatewayError
    from gateway.experts import ExpertsWord


class ModelState(enum.IntEnum):
    """Where a model is in its life; the numbers are those of `pomona.v1.ModelState`."""

    UNLOADED = 1
    QUEUED = 2
    LOADING = 3
    ACTIVE = 4
    DEGRADED = 5
    DRAINING = 6
    UNLOADING = 7
    BACKING_OFF = 8
    FAILED = 9


class ExitCause(enum.Enum):
    """Why a worker is no longer there to answer."""

    DIED = "died"
    STALLED = "stalled"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended, or, where it stalled, that it is given up.

    Attributes:
        cause: what ended it.
        signal: the signal's number, None where it exited by itself or still runs.
        code: the exit code, None where a signal ended it or it still runs.
        last_words: its last lines on standard error, newest last.
    """

    cause: ExitCause
    signal: int | None = None
    code: int | None = None
    last_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a caller of LoadModel may choose; None leaves the configured value.

    Attributes:
        context_tokens: the longest prompt and answer together, in tokens.
        max_batch_rows: how many requests run side by side.
        kv_scheme: how keys and values are kept.
        experts: where routed experts lie.
        expert_budget: of their slabs, in bytes; see `gateway.load_options` for how long it holds.
    """

    context_tokens: int | None = None
    max_batch_rows: int | None = None
    kv_scheme: str | None = None
    experts: ExpertsWord | None = None
    expert_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a loaded model stays where nobody uses it; None leaves the configured value.

    Attributes:
        pinned: it stays, whatever others need.
        idle_ttl_s: after so many seconds without a request it goes; 0: right after the last one.
    """

    pinned: bool | None = None
    idle_ttl_s: float | None = None

    def over(self, other: Keeping) -> Keeping:
        """Return what holds where this is chosen and `other` holds else."""
        return Keeping(
            other.pinned if self.pinned is None else self.pinned,
            other.idle_ttl_s if self.idle_ttl_s is None else self.idle_ttl_s,
        )


class PressureLevel(enum.IntEnum):
    """How full the machine's memory is; the numbers are those of `pomona.v1.MemoryPressure`."""

    NORMAL = 1
    SOFT_LIMIT = 2
    HARD_LIMIT = 3


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """What models have of the machine's memory together.

    Attributes:
        budget_bytes: what they may take.
        reserved_bytes: what those that are loaded, or load, may take at most.
        pressure: how full the machine is.
    """

    budget_bytes: int
    reserved_bytes: int
    pressure: PressureLevel = PressureLevel.NORMAL


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is, in bytes of the checkpoint."""

    phase: str = ""
    bytes_done: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Which process holds a model.

    Attributes:
        instance_id: new for every process, never used again.
        pid: its process id.
        start_time_s: when it was started, seconds since 1970.
        restart_count: how often this model's worker was started again after a crash.
        last_exit: how the worker before it ended, in words; empty where there was none.
    """

    instance_id: str
    pid: int
    start_time_s: float
    restart_count: int = 0
    last_exit: str = ""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What is known of a model at one moment.

    Attributes:
        model: canonical name.
        state: where it is in its life.
        waiting_for: why it waits, in QUEUED.
        failure: what a request would be told, in FAILED and BACKING_OFF.
        progress: how far the load is, in LOADING.
        worker: its process, where there is one.
        facts: what the worker said of the loaded model; from ACTIVE on.
        options: the load options in effect.
        stats: what its worker's last heartbeat counted; None where there is no worker.
        last_used_s: when its last request ended or began, seconds since 1970.
        keeping: what LoadModel chose of how long it stays.
        pinned: whether it stays, whatever others need; as chosen or configured.
        unload_time_s: when it goes if nobody uses it, seconds since 1970; None: it stays.
        reserved_bytes: what its worker may take of memory at most; 0 where there is none.
        is_removed: whether there is no such model any more.
    """

    model: str
    state: ModelState = ModelState.UNLOADED
    waiting_for: str = ""
    failure: GatewayError | None = None
    progress: LoadProgress | None = None
    worker: WorkerFacts | None = None
    facts: model_pb2.Model | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    stats: server_pb2.ModelStats | None = None
    last_used_s: float | None = None
    keeping: Keeping = field(default_factory=Keeping)
    pinned: bool = False
    unload_time_s: float | None = None
    reserved_bytes: int = 0
    is_removed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One worker process that may be called.

    Attributes:
        instance_id: new for every process, never used again.
        pid: its process id.
        channel: to its socket.
        secret: what every call to it must carry.
        exit: done as soon as it must not be called any more; its result says why.
        stub: the worker's private methods over the channel, made while that is open: grpcio 1.85 reads freed memory
            where a stub is made of a closed one.
    """

    instance_id: str
    pid: int
    channel: grpc.aio.Channel
    secret: str
    exit: asyncio.Future[Exit]
    stub: worker_pb2_grpc.WorkerServiceStub = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stub", worker_pb2_grpc.WorkerServiceStub(self.channel))


class Lease:
    """One request's hold on a worker, which is not idle while it lasts."""

    __slots__ = ("_release", "instance", "model")

    def __init__(self, model: str, instance: Instance, release: Callable[[], None]) -> None:
        """Hold `instance`; `release` is called once, when the hold ends."""
        self.model = model
        self.instance = instance
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """End the hold; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        """Return the lease itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the hold."""
        self.release()


class WorkerPool(Protocol):
    """What the relay and the services ask of whoever keeps the workers."""

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:
        """Return a hold on a worker that is ready, loading the model where needed.

        Raises:
            GatewayError: the model cannot serve now, or not within `timeout_s` seconds.
        """
        ...

    def state(self, model: str) -> ModelStatus:
        """Return what is known of `model` now; of one that was removed, just that."""
        ...

    def memory(self) -> MemoryStatus:
        """Return what models have of the machine's memory together."""
        ...

    async def load(
        self,
        model: str,
        options: LoadOptions | None,
        wait: bool,
        *,
        keeping: Keeping | None = None,
        allow_eviction: bool = True,
    ) -> ModelStatus:
        """Load `model` or join its load in flight.

        Args:
            model: canonical name.
            options: a model that runs with others is loaded anew; None takes it as it is.
            wait: return only when it is ready.
            keeping: how long it stays; what is None stays as it was chosen before.
            allow_eviction: whether idle models that are not pinned may go to make room for it.

        Raises:
            GatewayError: the load failed.
        """
        ...

    def restore(self, model: str, options: LoadOptions, keeping: Keeping) -> bool:
        """Take what was chosen for a model in an earlier life of the server; say whether there is such a model."""
        ...

    async def unload(self, model: str, grace_s: float, *, is_forgotten: bool = True) -> int:
        """Stop the worker of `model` and return the bytes freed once its process is gone.

        What was chosen for it is forgotten, unless told otherwise.
        """
        ...

    def watch(self) -> AsyncIterator[ModelStatus]:
        """Return every change from now on, removals too; changes of one model that wait to be read merge."""
        ...

    def put(self, model: str, configured: Callable[[], LoadOptions]) -> None:
        """Have a model that may be asked for, or tell watchers that what is configured for it changed."""
        ...

    def can_remove(self, model: str) -> bool:
        """Say whether no worker has a model, nor is about to."""
        ...

    def remove(self, model: str) -> bool:
        """Forget a model where `can_remove` holds, and return whether it is gone; who waits for it is told so."""
        ...
