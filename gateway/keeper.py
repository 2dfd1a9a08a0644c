"""What is kept of one model: its life, its worker, and who holds it."""

import asyncio
import time
from collections.abc import Callable

from gateway.errors import GatewayError, ModelBackingOff, ModelLoading, ModelUnloading, WorkerRestarting
from gateway.lifecycle import Lifecycle
from gateway.model_status import Instance, Lease, LoadProgress, ModelState, ModelStatus, WorkerFacts
from gateway.supervisor import Supervisor

S = ModelState


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
        on_idle: is called when the last request has let go of the model's present worker.
        now: monotonic time in seconds.
    """

    def __init__(self, life: Lifecycle, on_idle: Callable[["Keeper"], None], now: Callable[[], float]) -> None:
        self.life = life
        self.supervisor: Supervisor | None = None
        self.holds = Holds(self._let_go)
        self.timer: asyncio.TimerHandle | None = None
        self.stamp: object = None
        self.changed = asyncio.Event()
        self._on_idle = on_idle
        self._now = now
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
        self._last_used_s = time.time()
        self.holds.add()
        return Lease(self.model, instance, self.holds.end)

    def take(self, supervisor: Supervisor) -> None:
        """Begin with a new worker, which nobody holds."""
        self.supervisor = supervisor
        self.holds = Holds(self._let_go)

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

    def is_hopeless(self, left_s: float) -> bool:
        """Say whether the model certainly cannot be called within the next `left_s` seconds."""
        is_paused = self.life.state is S.BACKING_OFF and self.pause_left_s() > left_s
        return is_paused or self.life.state in {S.FAILED, S.UNLOADED}

    def refusal(self) -> GatewayError:
        """Return why a request cannot have the model now."""
        life = self.life
        if life.state is S.FAILED and life.failure is not None:
            return life.failure.with_traceback(None)
        if life.state is S.BACKING_OFF:
            return ModelBackingOff(self.model, life.attempt, self.pause_left_s())
        if life.state is S.LOADING:
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
            failure=self.refusal() if life.state in {S.FAILED, S.BACKING_OFF} else None,
            progress=life.progress,
            worker=self._facts(supervisor) if supervisor else None,
            facts=life.facts,
            options=life.options,
            stats=supervisor.stats if supervisor else None,
            last_used_s=self._last_used_s,
        )

    def _facts(self, supervisor: Supervisor) -> WorkerFacts | None:
        instance, life = supervisor.instance, self.life
        if instance is None:
            return None
        start_time_s = supervisor.start_time_s
        return WorkerFacts(instance.instance_id, instance.pid, start_time_s, life.restarts, life.last_exit)

    def _let_go(self, holds: Holds) -> None:
        self._last_used_s = time.time()
        if holds is self.holds and not holds.count and self.life.state is S.DRAINING:
            self._on_idle(self)
