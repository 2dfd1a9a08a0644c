"""Which worker holds which model: one task applies every event, so that no two things happen to a model at once.

Commands of callers and events of supervisors go through one queue. What an event leads to is begun there and never
awaited: no model waits for another, and callers wait for changes, each within its own time.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.back_off import BackOff, BackOffLimits
from gateway.changes import Changes, Watch
from gateway.errors import ModelNotFound, ServerDraining
from gateway.keeper import Keeper
from gateway.lifecycle import (
    AwaitIdle,
    Effect,
    Event,
    Exited,
    Idle,
    ImpossibleTransition,
    Lifecycle,
    Pause,
    PauseOver,
    Ready,
    StartWorker,
    StopWorker,
    Unwanted,
    Wanted,
)
from gateway.model_status import ExitCause, Instance, Lease, LoadOptions, ModelState, ModelStatus
from gateway.supervisor import Supervisor
from gateway.worker_link import announce_ending

WAIT_LIMIT_S = 3600.0  # For callers without a deadline.
ANSWER_MARGIN_S = 0.05  # Left of a caller's time for the refusal to reach it.
INCIDENT_S = 3.0  # Workers that die within this time of a first one are taken to die of the same cause.

S = ModelState
# What an operator who reads warnings only must see.
TROUBLE = {S.DEGRADED: logging.WARNING, S.BACKING_OFF: logging.WARNING, S.FAILED: logging.ERROR}
# In these a model has no worker and gets none by itself, or gives up to get one.
AT_REST = frozenset({S.UNLOADED, S.FAILED, S.BACKING_OFF})
Start = Callable[[str, LoadOptions, Callable[[Event], None]], Supervisor]
"""Starts a worker for a model with these options; its events go to the given function."""
Configured = Callable[[], LoadOptions]
"""Tells the options that a model has where LoadModel chose none; None where even that is not known."""
Stamp = Callable[[str], object]
"""Returns what changes when a file of a model's checkpoint changes; it may block."""


@dataclass(frozen=True, slots=True)
class Chances:
    """What tests replace: the clock and the dice.

    Attributes:
        now: monotonic time in seconds.
        dice: gives the jitter of pauses.
    """

    now: Callable[[], float] = time.monotonic
    dice: random.Random = field(default_factory=random.Random)


class Workers:
    """The workers of all models.

    Args:
        models: canonical names, each with what is configured for it.
        start_worker: starts a worker.
        stamp: tells whether a checkpoint changed.
        limits: pauses and budget after crashes.
        log: takes every change of state.
        chances: clock and dice.
    """

    def __init__(
        self,
        models: Mapping[str, Configured],
        start_worker: Start,
        stamp: Stamp,
        limits: BackOffLimits,
        log: FilteringBoundLogger,
        chances: Chances | None = None,
    ) -> None:
        self._start_worker = start_worker
        self._stamp = stamp
        self._log = log
        self._chances = chances or Chances()
        self._queue: asyncio.Queue[tuple[Keeper, Event, asyncio.Future[None] | None]] = asyncio.Queue()
        self._limits = limits
        self._keepers = {model: self._keep(model, told) for model, told in models.items()}
        self._changes = Changes(self.state)
        self._incident = ("", float("-inf"))  # the model that crashed first in it, and when
        self._is_stopping = False
        self._end_s = math.inf  # when requests of all models are ended, as far as that is known
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to apply events."""
        self._writer = asyncio.create_task(self._write(), name="workers")

    async def stop(self, grace_s: float) -> None:
        """Stop every worker, all at once; requests are refused from now on.

        Args:
            grace_s: how long running requests may go on; a second call may shorten it.
        """
        self._is_stopping = True
        held = [(keeper, keeper.supervisor) for keeper in self._keepers.values()]
        await asyncio.gather(*(self._submit(keeper, Unwanted(grace_s)) for keeper, _ in held))
        await asyncio.gather(*(self._gone(keeper, one, grace_s) for keeper, one in held if one is not None))
        if self._tasks:
            await asyncio.wait(self._tasks)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
            await asyncio.wait([writer])

    def announce_ending(self, remaining_s: float) -> None:
        """Have all workers, also those that load, tell their requests that in so many seconds they are ended."""
        self._end_s = min(self._end_s, self._chances.now() + remaining_s)
        for keeper in self._keepers.values():
            self._announce(keeper, remaining_s)

    def hurry(self) -> None:
        """Have workers that are being stopped end sooner, or be killed."""
        for keeper in self._keepers.values():
            if keeper.supervisor is not None:
                keeper.supervisor.hurry()

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:
        """Return a hold on a worker that is ready, loading the model where needed.

        Raises:
            GatewayError: the model cannot serve now, or not within `timeout_s` seconds.
        """
        keeper = self._keeper(model)
        if keeper.instance is not None and not self._is_stopping:
            return keeper.lease(keeper.instance)
        limit_s = WAIT_LIMIT_S if timeout_s is None else timeout_s - ANSWER_MARGIN_S
        has_changed = keeper.life.state is S.FAILED and await asyncio.to_thread(self._has_changed, keeper)
        await self._submit(keeper, Wanted(is_order=has_changed))
        return keeper.lease(await self._routable(keeper, limit_s))

    def state(self, model: str) -> ModelStatus:
        """Return what is known of `model` now; of one that was removed, just that."""
        keeper = self._keepers.get(model)
        return keeper.status() if keeper is not None else ModelStatus(model, is_removed=True)

    def instance(self, model: str) -> Instance | None:
        """Return the worker that may be called now, without a hold on it, or None where there is none."""
        return self._keeper(model).instance

    async def load(self, model: str, options: LoadOptions | None, wait: bool) -> ModelStatus:
        """Load `model` or join its load in flight.

        Args:
            model: canonical name.
            options: a model that runs with others is loaded anew; None takes it as it is.
            wait: return only when it is ready.

        Raises:
            GatewayError: the load failed.
        """
        keeper = self._keeper(model)
        await self._submit(keeper, Wanted(options, is_order=True))
        if wait:
            await self._routable(keeper, WAIT_LIMIT_S)
        return keeper.status()

    async def unload(self, model: str, grace_s: float) -> int:
        """Stop the worker of `model` and return the bytes freed once its process is gone.

        Args:
            model: canonical name.
            grace_s: how long its requests may go on.
        """
        keeper = self._keeper(model)
        supervisor = keeper.supervisor
        await self._submit(keeper, Unwanted(grace_s))
        if supervisor is None:
            return 0
        await self._gone(keeper, supervisor, grace_s)
        return supervisor.freed_bytes

    def watch(self) -> Watch:
        """Return every change from now on, removals too; changes of one model that wait to be read merge."""
        return self._changes.watch()

    def put(self, model: str, configured: Configured) -> None:
        """Have a model that may be asked for, or tell watchers that what is configured for it changed."""
        if model not in self._keepers:
            self._keepers[model] = self._keep(model, configured)
        self._changes.tell(model)

    def can_remove(self, model: str) -> bool:
        """Say whether no worker has a model, nor is about to."""
        keeper = self._keepers.get(model)
        return keeper is None or (keeper.supervisor is None and keeper.life.state in AT_REST)

    def remove(self, model: str) -> bool:
        """Forget a model where `can_remove` holds, and return whether it is gone; who waits for it is told so."""
        if not self.can_remove(model):
            return False
        keeper = self._keepers.pop(model, None)
        if keeper is not None:
            keeper.cancel_timer()
            keeper.wake()
            self._changes.tell(model)
        return True

    def _keep(self, model: str, configured: Configured) -> Keeper:
        def changed(old: ModelState, new: ModelState) -> None:
            how = {"last_exit": life.last_exit} if new in TROUBLE and life.last_exit else {}
            level = TROUBLE.get(new, logging.INFO)
            self._log.log(level, "model changed", model=model, old=old.name, new=new.name, **how)

        life = Lifecycle(model, BackOff(self._limits, self._chances.dice), self._chances.now, changed, configured)
        return Keeper(life, lambda keeper: self._post(keeper, Idle()), self._chances.now)

    def _keeper(self, model: str) -> Keeper:
        keeper = self._keepers.get(model)
        if keeper is None:
            raise ModelNotFound(model, tuple(self._keepers))
        return keeper

    def _has_changed(self, keeper: Keeper) -> bool:
        return keeper.stamp is not None and self._stamp(keeper.model) != keeper.stamp

    async def _note_stamp(self, keeper: Keeper) -> None:
        keeper.stamp = await asyncio.to_thread(self._stamp, keeper.model)

    async def _routable(self, keeper: Keeper, limit_s: float) -> Instance:
        """Wait until the model can be called, but no longer than that can still happen in time."""
        until_s = self._chances.now() + limit_s
        while (instance := keeper.instance) is None or self._is_stopping:
            left_s = until_s - self._chances.now()
            if self._is_stopping:
                raise ServerDraining
            self._keeper(keeper.model)
            if left_s <= 0 or keeper.is_hopeless(left_s):
                raise keeper.refusal()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await keeper.changed.wait()
        return instance

    async def _gone(self, keeper: Keeper, supervisor: Supervisor, grace_s: float) -> None:
        """Wait until a worker's process is gone; it is killed when its time to stop is over."""
        try:
            async with asyncio.timeout(grace_s + supervisor.longest_stop_s):
                while keeper.supervisor is supervisor:
                    await keeper.changed.wait()
        except TimeoutError:
            await supervisor.close(0.0)

    async def _submit(self, keeper: Keeper, event: Event) -> None:
        """Have an event applied and wait until it is; that takes one turn of the writer."""
        if self._writer is None or (self._is_stopping and isinstance(event, Wanted)):
            return
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((keeper, event, applied))
        await asyncio.wait([applied, self._writer], return_when=asyncio.FIRST_COMPLETED)
        if not applied.done():
            self._writer.result()  # The writer is broken: whoever asks is told, and does not wait for ever.

    def _post(self, keeper: Keeper, event: Event) -> None:
        self._queue.put_nowait((keeper, event, None))

    async def _write(self) -> None:
        while True:
            keeper, event, applied = await self._queue.get()
            try:
                self._apply(keeper, event)
            except ImpossibleTransition:
                self._log.exception("impossible change", model=keeper.model, event_type=type(event).__name__)
            if applied is not None and not applied.done():
                applied.set_result(None)

    def _apply(self, keeper: Keeper, event: Event) -> None:
        if self._keepers.get(keeper.model) is not keeper:
            return  # the model was removed while the event waited
        if isinstance(event, Exited):
            event = self._ended(keeper, event)
        old = keeper.life.state
        effect = keeper.life.apply(event)
        if effect is not None:
            self._carry_out(keeper, effect)
        if isinstance(event, Ready) and self._end_s < math.inf:
            self._announce(keeper, max(0.0, self._end_s - self._chances.now()))
        self._changes.tell(keeper.model)
        if keeper.life.state is not old or isinstance(event, Exited):
            keeper.wake()

    def _carry_out(self, keeper: Keeper, effect: Effect) -> None:
        match effect:
            case StartWorker():
                keeper.cancel_timer()
                self._begin(self._note_stamp(keeper))
                post = partial(self._post, keeper)
                keeper.take(self._start_worker(keeper.model, keeper.life.options, post))
            case StopWorker():
                keeper.cancel_timer()
                if keeper.supervisor is not None:
                    keeper.supervisor.stop()
            case AwaitIdle(grace_s):
                if keeper.holds.count:
                    self._announce(keeper, grace_s)
                keeper.set_timer(grace_s if keeper.holds.count else 0.0, partial(self._post, keeper, Idle()))
            case Pause(number, delay_s):
                keeper.set_timer(delay_s, partial(self._post, keeper, PauseOver(number)))

    def _announce(self, keeper: Keeper, remaining_s: float) -> None:
        """Tell a worker that has been ready: no other has requests."""
        instance = keeper.supervisor.instance if keeper.supervisor is not None else None
        if instance is not None and keeper.life.facts is not None:
            self._begin(announce_ending(instance, remaining_s))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, keeper: Keeper, event: Exited) -> Exited:
        """Let go of a worker that is gone, and see whether its crash is one of its own."""
        supervisor, keeper.supervisor = keeper.supervisor, None
        if supervisor is not None:
            self._begin(supervisor.close(supervisor.longest_stop_s))
        if event.exit.cause is not ExitCause.DIED:
            return event
        (model, began_s), now_s = self._incident, self._chances.now()
        if now_s - began_s > INCIDENT_S:
            model, _ = self._incident = keeper.model, now_s
        return replace(event, is_counted=model == keeper.model)
