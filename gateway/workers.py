"""Which worker holds which model: one task applies every event, so that no two things happen to a model at once.

Commands of callers and events of supervisors go through one queue. What an event leads to is begun there and never
awaited: no model waits for another, and callers wait for changes, each within its own time.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.back_off import BackOff
from gateway.chances import Chances
from gateway.changes import Changes, Watch
from gateway.errors import ModelNotFound, ServerDraining
from gateway.followers import Followers
from gateway.incidents import Incidents
from gateway.keeper import SERVING, Keeper, log_change
from gateway.life_events import (
    AwaitIdle,
    Claim,
    Effect,
    Event,
    Exited,
    Idle,
    Pause,
    PauseOver,
    Ready,
    StartWorker,
    StopWorker,
    Unwanted,
    Wanted,
)
from gateway.lifecycle import ImpossibleTransition, Lifecycle
from gateway.loads import Hooks, Loads, Terms
from gateway.model_status import (
    ExitCause,
    Instance,
    Keeping,
    Lease,
    LoadOptions,
    MemoryStatus,
    ModelState,
    ModelStatus,
)
from gateway.needs import Stamp
from gateway.pressure import Reading, Sampler
from gateway.supervisor import Supervisor
from gateway.worker_link import announce_ending
from gateway.writer import Writer

WAIT_LIMIT_S = 3600.0  # For callers without a deadline.
ANSWER_MARGIN_S = 0.05  # Left of a caller's time for the refusal to reach it.

S = ModelState
# In these a model has no worker and gets none by itself, or gives up to get one.
AT_REST = frozenset({S.UNLOADED, S.FAILED, S.BACKING_OFF})
Start = Callable[[str, LoadOptions, Callable[[Event], None]], Supervisor]
"""Starts a worker for a model with these options; its events go to the given function."""
Configured = Callable[[], LoadOptions]
"""Tells the options that a model has where LoadModel chose none; None where even that is not known."""


class Workers:
    """The workers of all models.

    Args:
        models: canonical names, each with what is configured for it.
        start_worker: starts a worker.
        stamp: tells whether a checkpoint changed.
        terms: on which models are loaded.
        log: takes every change of state.
        chances: clock and dice.
    """

    def __init__(
        self,
        models: Mapping[str, Configured],
        start_worker: Start,
        stamp: Stamp,
        terms: Terms,
        log: FilteringBoundLogger,
        chances: Chances | None = None,
    ) -> None:
        self._start_worker = start_worker
        self._stamp = stamp
        self._log = log
        self._terms = terms
        self._chances = chances or Chances()
        self._keepers = {model: self._keep(model, told) for model, told in models.items()}
        self._changes = Changes(self.state)
        self._sampler = Sampler(self._chances.read, self._chances.sample_s, self._chances.now)
        self.writer = Writer(self._advance)
        hooks = Hooks(self._apply, self.writer.post, self._changes.tell, self._sampler.hurry, self._chances.now)
        self._loads = Loads(self._keepers, self._terms, stamp, hooks, log)
        self._incidents = Incidents()
        self._is_stopping = False
        self._end_s = math.inf  # when requests of all models are ended, as far as that is known
        self._tasks: set[asyncio.Task[None]] = set()
        self._sampling = Followers(log)

    async def start(self) -> None:
        """Begin to apply events."""
        self.writer.start()
        self._sampling.begin({"memory": partial(self._sampler.follow, self._pids, self._take_reading)})

    @property
    def is_running(self) -> bool:
        """Whether events are applied; where not, nothing of a model ever changes."""
        return self.writer.is_running

    async def stop(self, grace_s: float) -> None:
        """Stop every worker, all at once; requests are refused from now on.

        Args:
            grace_s: how long running requests may go on; a second call may shorten it.
        """
        self._is_stopping = True
        held = [(keeper, keeper.supervisor) for keeper in self._keepers.values()]
        if self.writer.failure is None:
            await asyncio.gather(*(self._submit(keeper, Unwanted(grace_s)) for keeper, _ in held))
        await asyncio.gather(*(self._gone(keeper, one, grace_s) for keeper, one in held if one is not None))
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._loads.close()
        await self.writer.stop()
        await self._sampling.stop()

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
        self._loads.check_pressure()
        if keeper.instance is not None and not self._is_stopping:
            return keeper.lease(keeper.instance)
        until_s = self._chances.now() + (WAIT_LIMIT_S if timeout_s is None else timeout_s - ANSWER_MARGIN_S)
        is_order = keeper.life.state is S.FAILED and await asyncio.to_thread(self._has_changed, keeper)
        with keeper.awaited():
            while True:  # a model that is unloaded while a request waits for it is loaded once more
                await self._submit(keeper, Wanted(is_order=is_order))
                instance = await self._routable(keeper, until_s)
                if instance is not None:
                    return keeper.lease(instance)
                is_order = False

    def state(self, model: str) -> ModelStatus:
        """Return what is known of `model` now; of one that was removed, just that."""
        keeper = self._keepers.get(model)
        return keeper.status() if keeper is not None else ModelStatus(model, is_removed=True)

    def instance(self, model: str) -> Instance | None:
        """Return the worker that may be called now, without a hold on it, or None where there is none."""
        return self._keeper(model).instance

    def memory(self) -> MemoryStatus:
        """Return what models have of the machine's memory together."""
        return self._loads.status()

    async def load(
        self,
        model: str,
        options: LoadOptions | None,
        wait: bool,
        *,
        keeping: Keeping | None = None,
        allow_eviction: bool = True,
    ) -> ModelStatus:
        """Load `model` or join its load in flight, as `WorkerPool.load` says.

        Raises:
            GatewayError: the load failed.
        """
        keeper = self._keeper(model)
        until_s = self._chances.now() + WAIT_LIMIT_S
        wanted = Wanted(options, is_order=True, keeping=keeping or Keeping(), may_evict=allow_eviction)
        with keeper.awaited():
            await self._submit(keeper, wanted)
            if not wait and keeper.life.state not in SERVING:
                keeper.ordered_until_s = until_s
            if wait and await self._routable(keeper, until_s) is None:
                raise self._loads.refusal(keeper)
        return keeper.status()

    def restore(self, model: str, options: LoadOptions, keeping: Keeping) -> bool:
        """Take what was chosen for a model in an earlier life of the server; say whether there is such a model."""
        keeper = self._keepers.get(model)
        if keeper is None or not self.can_remove(model):
            return False
        keeper.life.options, keeper.life.keeping = options, keeping
        self._changes.tell(model)
        return True

    async def unload(self, model: str, grace_s: float, *, is_forgotten: bool = True) -> int:
        """Stop the worker of `model` and return the bytes freed once its process is gone.

        Its requests may go on for `grace_s` seconds. What was chosen for it is forgotten, unless told otherwise.
        """
        keeper = self._keeper(model)
        ending: list[Supervisor | None] = []

        def leave() -> None:  # who is there by then: a load that was asked for before may have begun
            ending.append(keeper.supervisor)
            self._apply(keeper, Unwanted(grace_s, is_forgotten))

        await self.writer.submit(leave)
        if not ending or (supervisor := ending[0]) is None:
            return 0
        await self._gone(keeper, supervisor, grace_s)
        return supervisor.freed_bytes

    def watch(self) -> Watch:
        """Return every change from now on, removals too; changes of one model that wait to be read merge."""
        return self._changes.watch()

    def put(self, model: str, configured: Configured) -> None:
        """Have a model that may be asked for, or tell watchers that what is configured for it changed."""
        keeper = self._keepers.setdefault(model, self._keep(model, configured))
        self._loads.mind(keeper)
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
        chances, changed = self._chances, partial(log_change, self._log, self._terms.onlooker)
        life = Lifecycle(model, BackOff(self._terms.back_off, chances.dice), chances.now, changed, configured)
        return Keeper(life, self._let_go, chances.now, partial(self._terms.keeping, model))

    def _let_go(self, keeper: Keeper) -> None:
        """Go on where the last request has let go of a model."""
        if keeper.life.state is S.DRAINING:
            self._post(keeper, Idle())
        elif not self._is_stopping and not keeper.num_waiting:
            self._loads.let_go(keeper)

    def _keeper(self, model: str) -> Keeper:
        keeper = self._keepers.get(model)
        if keeper is None:
            raise ModelNotFound(model)
        return keeper

    def _has_changed(self, keeper: Keeper) -> bool:
        return keeper.stamp is not None and self._stamp(keeper.model) != keeper.stamp

    async def _note_stamp(self, keeper: Keeper) -> None:
        keeper.stamp = await asyncio.to_thread(self._stamp, keeper.model)

    async def _routable(self, keeper: Keeper, until_s: float) -> Instance | None:
        """Wait until the model can be called, but no longer than that can still happen in time.

        Returns:
            The worker to call; None where the model was unloaded meanwhile.

        Raises:
            GatewayError: it cannot be called in time.
        """
        while (instance := keeper.instance) is None or self._is_stopping:
            left_s = until_s - self._chances.now()
            if self._is_stopping or not self.writer.is_running:
                raise ServerDraining
            if self._keepers.get(keeper.model) is not keeper:
                raise ModelNotFound(keeper.model)
            if left_s <= 0 or keeper.is_hopeless(left_s):
                raise self._loads.refusal(keeper)
            if keeper.life.state is S.UNLOADED:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await keeper.changed.wait()
        return instance

    async def _gone(self, keeper: Keeper, supervisor: Supervisor, grace_s: float) -> None:
        """Wait until a worker's process is gone; it is killed when its time to stop is over."""
        try:
            async with asyncio.timeout(grace_s + supervisor.longest_stop_s if self.writer.failure is None else 0.0):
                while keeper.supervisor is supervisor:
                    await keeper.changed.wait()
        except TimeoutError:
            await supervisor.close(0.0)

    async def _submit(self, keeper: Keeper, event: Event) -> None:
        """Have an event applied and wait until it is."""
        if not (self._is_stopping and isinstance(event, Wanted)):
            await self.writer.submit(partial(self._apply, keeper, event))

    def _post(self, keeper: Keeper, event: Event) -> None:
        self.writer.post(partial(self._apply, keeper, event))

    def _take_reading(self, reading: Reading) -> None:
        self.writer.post(partial(self._loads.measured, reading))

    def _pids(self) -> list[int]:
        held = [keeper.supervisor.instance for keeper in self._keepers.values() if keeper.supervisor is not None]
        return [instance.pid for instance in held if instance is not None]

    def _advance(self) -> None:
        if not self._is_stopping:
            self._loads.advance()

    def _apply(self, keeper: Keeper, event: Event) -> None:
        if self._keepers.get(keeper.model) is not keeper:
            return  # the model was removed while the event waited
        old = keeper.life.state
        try:
            self._follow(keeper, event)
        except ImpossibleTransition:
            self._log.exception("impossible change", model=keeper.model, event_type=type(event).__name__)
        self._changes.tell(keeper.model)
        if keeper.life.state is not old or isinstance(event, Exited):
            keeper.wake()

    def _follow(self, keeper: Keeper, event: Event) -> None:
        """Have an event happen to a model, and begin what follows from it."""
        if isinstance(event, Exited):
            event = self._ended(keeper, event)
        elif isinstance(event, Wanted):
            self._loads.wanted(keeper, may_evict=event.may_evict)
        effect = keeper.life.apply(event)
        if effect is not None:
            self._carry_out(keeper, effect)
        if isinstance(event, Ready):
            self._loads.ready(keeper)
            if self._end_s < math.inf:
                self._announce(keeper, max(0.0, self._end_s - self._chances.now()))
        if isinstance(event, Ready | Wanted):
            self._loads.mind(keeper)

    def _carry_out(self, keeper: Keeper, effect: Effect) -> None:
        match effect:
            case Claim():
                self._loads.claim(keeper)
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
            self._loads.ended(keeper, supervisor)
            self._begin(supervisor.close(supervisor.longest_stop_s))
        if event.exit.cause is not ExitCause.DIED:
            return event
        return replace(event, is_counted=self._incidents.is_own(keeper.model, self._chances.now()))
