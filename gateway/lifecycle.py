"""The life of one model: which state follows which event, and what is to be done about it.

Plain Python without a clock, a process or a task: whoever keeps the model applies events one at a time and carries
out the effects that come back. A model is either wanted or not; a worker that ends is followed by another one while
it is wanted.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from pomona.v1 import model_pb2

from gateway.back_off import BackOff
from gateway.errors import GatewayError, ModelFailed
from gateway.exit_words import words_of
from gateway.experts import experts_word
from gateway.life_events import (
    AwaitIdle,
    Claim,
    Effect,
    Event,
    Exited,
    Forsaken,
    Granted,
    Idle,
    Leaving,
    Pause,
    PauseOver,
    Progressed,
    Ready,
    Recovered,
    Refused,
    Retired,
    StartWorker,
    StopWorker,
    Suspected,
    Unwanted,
    Wanted,
)
from gateway.load_options import following, in_effect
from gateway.model_status import Keeping, LoadOptions, LoadProgress, ModelState

S = ModelState
FOLLOWS: Mapping[ModelState, frozenset[ModelState]] = {
    S.UNLOADED: frozenset({S.QUEUED}),
    S.QUEUED: frozenset({S.LOADING, S.UNLOADED, S.FAILED}),
    S.LOADING: frozenset({S.ACTIVE, S.UNLOADING, S.BACKING_OFF, S.FAILED}),
    S.ACTIVE: frozenset({S.DEGRADED, S.DRAINING, S.BACKING_OFF, S.FAILED}),
    S.DEGRADED: frozenset({S.ACTIVE, S.DRAINING, S.BACKING_OFF, S.FAILED}),
    S.DRAINING: frozenset({S.UNLOADING, S.UNLOADED}),
    S.UNLOADING: frozenset({S.UNLOADED}),
    S.BACKING_OFF: frozenset({S.QUEUED, S.UNLOADED}),
    S.FAILED: frozenset({S.QUEUED, S.UNLOADED}),
}
DEFAULT_GRACE_S = 30.0
LOAD_OPTIONS = tuple(one.name for one in fields(LoadOptions))


class ImpossibleTransition(Exception):
    """Raised when a state is to follow one that it cannot follow."""


OnChange = Callable[["Lifecycle", ModelState], None]


class Lifecycle:
    """The state of one model and what led to it.

    Args:
        model: its canonical name.
        back_off: its crashes.
        now: monotonic time in seconds.
        on_change: is called with the life after a change and the state before.
        configured: tells the options that hold where none was chosen; None where even that is not known.
    """

    def __init__(
        self,
        model: str,
        back_off: BackOff,
        now: Callable[[], float],
        on_change: OnChange,
        configured: Callable[[], LoadOptions] = LoadOptions,
    ) -> None:
        self.model = model
        self.state = S.UNLOADED
        self.options = LoadOptions()
        self.keeping = Keeping()
        self.progress: LoadProgress | None = None
        self.facts: model_pb2.Model | None = None
        self.failure: GatewayError | None = None
        self.last_exit = ""
        self.restarts = 0
        self.retry_at_s = 0.0
        self._back_off = back_off
        self._now = now
        self._on_change = on_change
        self._configured = configured
        self._is_wanted = False
        self.ready_at_s: float | None = None
        self._pause_number = 0

    @property
    def attempt(self) -> int:
        """How many pauses there were since the last good run."""
        return self._back_off.attempt

    def apply(self, event: Event) -> Effect | None:
        """Follow an event.

        Returns:
            What is to be done now, if anything.
        """
        return _STEPS[type(event)](self, event)

    def wanted(self, event: Wanted) -> Effect | None:
        """Follow `Wanted`: start, join what is under way, or stay failed."""
        if self.state is S.FAILED and not event.is_order:
            return None
        is_other = self._choose(event.options or LoadOptions())
        self.keeping = event.keeping.over(self.keeping)
        self._is_wanted = True
        if self.state in {S.UNLOADED, S.FAILED}:
            self._back_off.reset()
            return self._queue()
        if self.state is S.QUEUED:
            return Claim() if is_other else None
        return self._leave(DEFAULT_GRACE_S) if is_other else None

    def unwanted(self, event: Unwanted) -> Effect | None:
        """Follow `Unwanted`: drain, stop the load, or forget the failure."""
        self._is_wanted = False
        if event.is_forgotten:
            self.options, self.keeping = LoadOptions(), Keeping()
        if self.state in {S.BACKING_OFF, S.FAILED, S.QUEUED}:
            self.failure = None
            self._enter(S.UNLOADED)
            return None
        return self._leave(event.grace_s)

    def retired(self, event: Retired) -> Effect | None:
        """Follow `Retired`: drain or stop the load; a model that waits, in whatever way, goes on waiting."""
        if self.state not in {S.LOADING, S.ACTIVE, S.DEGRADED}:
            return None
        self._is_wanted = False
        return self._leave(event.grace_s)

    def granted(self, _: Granted) -> Effect | None:
        """Follow `Granted`: load."""
        if self.state is not S.QUEUED:
            return None
        self.progress = LoadProgress("starting")
        self._enter(S.LOADING)
        return StartWorker()

    def refused(self, event: Refused) -> None:
        """Follow `Refused`: it is of no use to wait."""
        if self.state is S.QUEUED:
            self._fail(event.failure)

    def forsaken(self, _: Forsaken) -> None:
        """Follow `Forsaken`: nothing is loaded for nobody."""
        if self.state is S.QUEUED:
            self._is_wanted = False
            self._enter(S.UNLOADED)

    def progressed(self, event: Progressed) -> None:
        """Follow `Progressed`."""
        self.progress = event.progress

    def ready(self, event: Ready) -> None:
        """Follow `Ready`; a worker that is already being stopped stays on its way out."""
        if self.state is S.LOADING:
            self.facts = event.facts
            self.progress = self.failure = None
            self.ready_at_s = self._now()
            self._enter(S.ACTIVE)

    def suspected(self, _: Suspected) -> None:
        """Follow `Suspected`."""
        if self.state is S.ACTIVE:
            self._enter(S.DEGRADED)

    def recovered(self, _: Recovered) -> None:
        """Follow `Recovered`."""
        if self.state is S.DEGRADED:
            self._enter(S.ACTIVE)

    def leaving(self, _: Leaving) -> Effect | None:
        """Follow `Leaving`: its requests may finish, and while the model is wanted another worker follows."""
        return self._leave(DEFAULT_GRACE_S) if self.state in {S.ACTIVE, S.DEGRADED} else None

    def exited(self, event: Exited) -> Effect | None:
        """Follow `Exited`: unloaded as asked, failed for good, or again after a pause."""
        served_s = 0.0 if self.ready_at_s is None else self._now() - self.ready_at_s
        self.progress = self.facts = self.ready_at_s = None
        self.last_exit = words_of(event.exit)
        if self.state in {S.DRAINING, S.UNLOADING}:
            self._enter(S.UNLOADED)
            return self._queue() if self._is_wanted else None
        if event.failure is not None:
            return self._fail(event.failure)
        delay_s = self._back_off.crashed(self._now(), served_s, is_counted=event.is_counted)
        if delay_s is None:
            return self._fail(ModelFailed(self.model, self.last_exit))
        return self._pause(delay_s)

    def idle(self, _: Idle) -> Effect | None:
        """Follow `Idle`: nothing holds the worker any more."""
        if self.state is not S.DRAINING:
            return None
        self._enter(S.UNLOADING)
        return StopWorker()

    def pause_over(self, event: PauseOver) -> Effect | None:
        """Follow `PauseOver`, unless that pause was given up."""
        if self.state is not S.BACKING_OFF or event.number != self._pause_number:
            return None
        self.restarts += 1
        return self._queue()

    def _choose(self, asked: LoadOptions) -> bool:
        """Keep what is asked for, and return whether some of it does not hold yet, as chosen, configured or running.

        Of what holds already, only where experts are to lie is kept: a later budget goes with it.
        """
        configured = self._configured()
        chosen = following(self.options, asked, configured)
        after = in_effect(chosen, configured)
        holding = (in_effect(self.options, configured), self._running())
        other = {name for name in LOAD_OPTIONS if all(getattr(one, name) != getattr(after, name) for one in holding)}
        kept = {name: getattr(chosen, name) for name in other | {"experts", "expert_budget"}}
        self.options = replace(self.options, **kept)
        return bool(other)

    def _running(self) -> LoadOptions:
        """Return the options that the worker runs with, which may be less than it was asked for."""
        if self.facts is None or self.state not in {S.ACTIVE, S.DEGRADED}:
            return LoadOptions()
        told = self.facts.runtime.options
        return LoadOptions(
            told.context_tokens or None,
            told.max_batch_rows or None,
            told.kv_scheme or None,
            experts_word(told.experts_mode),
            told.expert_budget_bytes or None,
        )

    def _queue(self) -> Effect:
        self.failure = None
        self._enter(S.QUEUED)
        return Claim()

    def _leave(self, grace_s: float) -> Effect | None:
        if self.state is S.LOADING:
            self._enter(S.UNLOADING)
            return StopWorker()
        if self.state in {S.ACTIVE, S.DEGRADED}:
            self._enter(S.DRAINING)
        return AwaitIdle(grace_s) if self.state is S.DRAINING else None

    def _pause(self, delay_s: float) -> Effect:
        self._pause_number += 1
        self.retry_at_s = self._now() + delay_s
        self._enter(S.BACKING_OFF)
        return Pause(self._pause_number, delay_s)

    def _fail(self, failure: GatewayError) -> None:
        self._is_wanted = False
        self.failure = failure
        self._enter(S.FAILED)

    def _enter(self, state: ModelState) -> None:
        old, self.state = self.state, state
        if state not in FOLLOWS[old]:
            raise ImpossibleTransition(f"{old.name} to {state.name}")
        self._on_change(self, old)


_STEPS: Mapping[type[Event], Callable[[Lifecycle, Any], Effect | None]] = {
    Wanted: Lifecycle.wanted,
    Unwanted: Lifecycle.unwanted,
    Retired: Lifecycle.retired,
    Granted: Lifecycle.granted,
    Refused: Lifecycle.refused,
    Forsaken: Lifecycle.forsaken,
    Progressed: Lifecycle.progressed,
    Ready: Lifecycle.ready,
    Suspected: Lifecycle.suspected,
    Recovered: Lifecycle.recovered,
    Leaving: Lifecycle.leaving,
    Exited: Lifecycle.exited,
    Idle: Lifecycle.idle,
    PauseOver: Lifecycle.pause_over,
}
