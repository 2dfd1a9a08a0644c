"""Where the worker stands, from loading to its end, and what its watchers are told of it."""

import asyncio
import contextlib
import logging
from enum import Enum

from pomona.v1 import common_pb2, model_pb2

log = logging.getLogger(__name__)


class State(Enum):
    """The states of a worker; only `Status` changes them."""

    LOADING = "loading"
    ACTIVE = "active"
    DRAINING = "draining"
    ENDED = "ended"
    FAILED = "failed"


_FOLLOWING = {
    State.LOADING: frozenset({State.ACTIVE, State.DRAINING, State.FAILED}),
    State.ACTIVE: frozenset({State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.ENDED}),
    State.ENDED: frozenset[State](),
    State.FAILED: frozenset[State](),
}


class StatusOrderError(RuntimeError):
    """Raised when the worker is to enter a state that cannot follow its own."""


class Status:
    """The one place where the worker's state is kept; belongs to the event loop.

    Attributes:
        model: what was loaded; None until active.
        failure: why it failed; None unless failed.
        version: grows with every change.
    """

    def __init__(self) -> None:
        self.model: model_pb2.Model | None = None
        self.failure: common_pb2.Failure | None = None
        self.version = 0
        self._state = State.LOADING
        self._changed = asyncio.Event()
        self._told = asyncio.Event()

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def activate(self, model: model_pb2.Model) -> None:
        """Say that the model answers from now on."""
        self.model = model
        self._move(State.ACTIVE)

    def drain(self) -> None:
        """Say that no request is taken any more; done already is fine."""
        if self._state in {State.LOADING, State.ACTIVE}:
            self._move(State.DRAINING)

    def end(self) -> None:
        """Say that nothing runs any more and the process is about to exit; said already is fine."""
        if self._state is State.DRAINING:
            self._move(State.ENDED)

    def fail(self, failure: common_pb2.Failure) -> None:
        """Say that the model cannot be loaded."""
        self.failure = failure
        self._move(State.FAILED)

    async def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Return once `version` is no longer the present one, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.version == version:
                    await self._changed.wait()

    def note_told(self) -> None:
        """Note that a watcher has been sent the last state."""
        self._told.set()

    async def wait_until_told(self, timeout_s: float) -> None:
        """Return once a watcher has been sent the last state, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._told.wait()

    def _move(self, state: State) -> None:
        if state not in _FOLLOWING[self._state]:
            raise StatusOrderError(f"{state.value} cannot follow {self._state.value}")
        log.info("worker moved", extra={"before": self._state.value, "after": state.value})
        self._state = state
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
