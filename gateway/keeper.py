"""What is kept of one model: its life, its worker, and who holds it."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError, ModelBackingOff, ModelLoading, ModelUnloading, WorkerRestarting
from gateway.ledger import Resident
from gateway.lifecycle import Lifecycle
from gateway.model_status import (
    Instance,
    Keeping,
    Lease,
    LoadOptions,
    LoadProgress,
    ModelState,
    ModelStatus,
    WorkerFacts,
)
from gateway.onlooker import Onlooker
from gateway.supervisor import Supervisor

S = ModelState
SERVING = frozenset({S.ACTIVE, S.DEGRADED})
# What an operator who reads warnings only must see.
TROUBLE = {S.DEGRADED: logging.WARNING, S.BACKING_OFF: logging.WARNING, S.FAILED: logging.ERROR}
LEAVING = frozenset({S.DRAINING, S.UNLOADING})


class Holds:
    """How many requests hold one worker.

    Args:
        on_end: is called at the end of each hold.
    """

    def __init__(self, on_end: Callable[["Holds"], None]) -> None:
        self.count = 0
        self._on_end = on_end

    def add(self) -> None:
        """Begin a hold."""
        self.count += 1

    def end(self) -> None:
        """End a hold."""
        self.count -= 1
        self._on_end(self)


class Keeper:
    """One model's record; only the task of `gateway.workers` changes its state.

    Args:
        life: the model's state.
        on_idle: is called when nobody uses the model any more, or waits for it.
        now: monotonic time in seconds.
        configured: tells how long it stays where LoadModel chose nothing.
    """

    def __init__(
        self,
        life: Lifecycle,
        on_idle: Callable[["Keeper"], None],
        now: Callable[[], float],
        configured: Callable[[], Keeping] = Keeping,
    ) -> None:
        self.life = life
        self.supervisor: Supervisor | None = None
        self.holds = Holds(self._let_go)
        self.num_waiting = 0  # callers who wait until it can be called
        self.ordered_until_s = float("-inf")  # until then it is to be loaded though nobody waits for that
        self.waiting_for = ""
        self.reserved_bytes = 0
        self.may_evict = True
        self.peak_bytes = 0  # the most that its present worker was seen to hold
        self.loaded_options = LoadOptions()  # that its present worker was started with
        self.started_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.idle_timer: asyncio.TimerHandle | None = None
        self.stamp: object = None
        self.changed = asyncio.Event()
        self.used_s = now()  # when it was ready or last used
        self.was_used = False
        self._on_idle = on_idle
        self._now = now
        self._configured = configured
        self._last_used_s: float | None = None

    @property
    def model(self) -> str:
        """The model's canonical name."""
        return self.life.model

    @property
    def instance(self) -> Instance | None:
        """The worker that may be called now."""
        instance = self.supervisor.instance if self.supervisor and self.life.state is S.ACTIVE else None
        return instance if instance and not instance.exit.done() else None

    def lease(self, instance: Instance) -> Lease:
        """Hold the present worker for a request."""
        self._note_use()
        self.cancel_idle_timer()
        self.holds.add()
        return Lease(self.model, instance, self.holds.end)

    def take(self, supervisor: Supervisor) -> None:
        """Begin with a new worker, which nobody holds."""
        self.supervisor = supervisor
        self.holds = Holds(self._let_go)
        self.loaded_options = self.life.options
        self.ordered_until_s = float("-inf")
        self.started_s = self.used_s = self._now()
        self.was_used, self.peak_bytes = False, 0

    def wake(self) -> None:
        """Have everyone who waits for a change look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a delay; an earlier timer is given up."""
        self.cancel_timer()
        self.timer = asyncio.get_running_loop().call_later(delay_s, call)

    def cancel_timer(self) -> None:
        """Give the timer up, if there is one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def cancel_idle_timer(self) -> None:
        """Let it stay, however long nobody uses it."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None

    @contextmanager
    def awaited(self) -> Generator[None]:
        """Wait for it: so long it is not idle, and its load is not forsaken."""
        self.num_waiting += 1
        try:
            yield
        finally:
            self.num_waiting -= 1
            if not self.num_waiting and not self.holds.count:
                self._on_idle(self)

    @property
    def keeping(self) -> Keeping:
        """How long it stays: as chosen, else as configured."""
        return self.life.keeping.over(self._configured())

    @property
    def is_pinned(self) -> bool:
        """Whether it stays, whatever others need."""
        return bool(self.keeping.pinned)

    @property
    def is_awaited(self) -> bool:
        """Whether it is to be loaded: someone waits for that, or ordered it."""
        return self.num_waiting > 0 or self.ordered_until_s > self._now()

    @property
    def is_idle(self) -> bool:
        """Whether its worker serves, nobody uses it, and nobody waits for it."""
        return self.life.state in SERVING and not self.holds.count and not self.num_waiting

    def idle_left_s(self) -> float | None:
        """Return after how many seconds it goes if nobody uses it; None: it stays."""
        ttl_s = self.keeping.idle_ttl_s
        if ttl_s is None or not self.is_idle or self.is_pinned or (ttl_s == 0 and not self.was_used):
            return None
        return max(0.0, self.used_s + ttl_s - self._now())

    def resident(self, min_residence_s: float, footprint_bytes: int) -> Resident:
        """Return what the ledger is to know of a model that has a worker.

        Args:
            min_residence_s: how long a model stays at least once it is ready.
            footprint_bytes: what its worker has in fact.
        """
        has_stayed = self.residence_left_s(min_residence_s) <= 0
        return Resident(
            self.model,
            may_go=self.is_idle and not self.is_pinned and has_stayed,
            is_leaving=self.life.state in LEAVING,
            is_pinned=self.is_pinned,
            last_used_s=self.used_s,
            footprint_bytes=footprint_bytes,
        )

    def residence_left_s(self, min_residence_s: float) -> float:
        """Return how much of its least stay is left, in seconds."""
        ready_at_s = self.life.ready_at_s
        return min_residence_s if ready_at_s is None else ready_at_s + min_residence_s - self._now()

    def is_hopeless(self, left_s: float) -> bool:
        """Say whether the model certainly cannot be called within the next `left_s` seconds."""
        is_paused = self.life.state is S.BACKING_OFF and self.pause_left_s() > left_s
        return is_paused or self.life.state is S.FAILED

    def refusal(self) -> GatewayError:
        """Return why a request cannot have the model now."""
        life = self.life
        if life.state is S.FAILED and life.failure is not None:
            return life.failure.with_traceback(None)
        if life.state is S.BACKING_OFF:
            return ModelBackingOff(self.model, life.attempt, self.pause_left_s())
        if life.state in {S.QUEUED, S.LOADING}:
            return ModelLoading(self.model, life.progress or LoadProgress())
        if life.state in {S.ACTIVE, S.DEGRADED}:
            return WorkerRestarting(self.model)
        return ModelUnloading(self.model)

    def pause_left_s(self) -> float:
        """Return the time to the next start after a crash, in seconds."""
        return max(0.0, self.life.retry_at_s - self._now())

    def status(self) -> ModelStatus:
        """Return what is known now."""
        life, supervisor = self.life, self.supervisor
        return ModelStatus(
            model=self.model,
            state=life.state,
            waiting_for=self.waiting_for if life.state is S.QUEUED else "",
            failure=self.refusal() if life.state in {S.FAILED, S.BACKING_OFF} else None,
            progress=life.progress,
            worker=self._facts(supervisor) if supervisor else None,
            facts=life.facts,
            options=life.options,
            stats=supervisor.stats if supervisor else None,
            last_used_s=self._last_used_s,
            keeping=life.keeping,
            pinned=self.is_pinned,
            unload_time_s=self._unload_time_s(),
            reserved_bytes=self.reserved_bytes,
        )

    def _unload_time_s(self) -> float | None:
        left_s = self.idle_left_s()
        return None if left_s is None else time.time() + left_s

    def _note_use(self) -> None:
        self._last_used_s, self.used_s, self.was_used = time.time(), self._now(), True

    def _facts(self, supervisor: Supervisor) -> WorkerFacts | None:
        instance, life = supervisor.instance, self.life
        if instance is None:
            return None
        start_time_s = supervisor.start_time_s
        return WorkerFacts(instance.instance_id, instance.pid, start_time_s, life.restarts, life.last_exit)

    def _let_go(self, holds: Holds) -> None:
        self._note_use()
        if holds is self.holds and not holds.count:
            self._on_idle(self)


def log_change(log: FilteringBoundLogger, onlooker: Onlooker, life: Lifecycle, old: ModelState) -> None:
    """Write down, and tell, that a model changed, and how its worker ended where that is the trouble."""
    how = {"last_exit": life.last_exit} if life.state in TROUBLE and life.last_exit else {}
    level = TROUBLE.get(life.state, logging.INFO)
    log.log(level, "model changed", model=life.model, old=old.name, new=life.state.name, **how)
    onlooker.changed(life.model, old, life.state)
