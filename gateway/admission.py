"""How many requests are let in: limits for each model and for the server, a bounded room to wait in, and the drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, ServerDraining
from gateway.principal import ANYONE, Principal

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many requests may run and wait.

    Attributes:
        max_requests: in flight in the whole server.
        max_requests_per_model: in flight of one model.
        max_waiting: waiting for one of those places.
        max_wait_s: how long one of them waits.
        max_held_bytes: of all requests that wait or whose answer has not begun.
        queue_share: of those waiting places and bytes, the most that one caller may have who is known by name.
    """

    max_requests: int
    max_requests_per_model: int
    max_waiting: int
    max_wait_s: float
    max_held_bytes: int = 256 * MIB
    queue_share: float = 1.0


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """What holds for one model instead; None: what holds for all.

    Attributes:
        max_requests: of it in flight.
        max_waiting: of them that wait for a place.
    """

    max_requests: int | None = None
    max_waiting: int | None = None


class Admission:
    """Gives out places. Lives on one event loop; whoever has a place must leave it.

    Args:
        limits: for all; every place is free.
        own: tells those of one model.
    """

    def __init__(self, limits: AdmissionLimits, own: Callable[[str], OwnLimits] = lambda _: OwnLimits()) -> None:
        self._limits = limits
        self._own = own
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: list[_Waiter] = []
        self._held_bytes = 0
        self._held_by: Counter[str] = Counter()  # bytes of each caller
        self._holders = 0
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """Bytes of the requests that are kept."""
        return self._held_bytes

    def hold(self, size: int, who: Principal = ANYONE) -> None:
        """Keep a request of `size` bytes until `drop` is called with the same number and caller.

        Raises:
            QueueFull: too many bytes are kept already, of all callers or of this one.
        """
        most = self._limits.max_held_bytes
        if self._held_bytes + size > most:
            raise QueueFull("request bytes", self._holders)
        if self._held_by[who.name] + size > self._share(who, most):
            raise QueueFull("request bytes of one caller", self._holders)
        self._held_bytes += size
        self._held_by[who.name] += size
        self._holders += 1

    def drop(self, size: int, who: Principal = ANYONE) -> None:
        """Keep a request of `size` bytes no more."""
        self._held_bytes -= size
        self._held_by[who.name] -= size
        self._holders -= 1
        if not self._held_by[who.name]:
            del self._held_by[who.name]

    async def enter(
        self, model: str, priority: int = 0, timeout_s: float | None = None, who: Principal = ANYONE
    ) -> None:
        """Take a place for a request of `model`, waiting for one where none is free.

        Args:
            model: canonical name.
            priority: a higher one gets a free place first.
            timeout_s: until the caller's deadline.
            who: the caller.

        Raises:
            QueueFull: too many wait already, of all callers or of this one, or no place became free within the limit.
            DeadlineExceeded: none became free before the caller's deadline.
            ServerDraining: no one is let in any more.
        """
        self.check_open()
        if self._has_place(model):
            self._take(model)
            return
        if not self._may_wait(model):
            raise self._full(model)
        self._check_share(who)
        waiter = _Waiter(model, priority, asyncio.get_running_loop().create_future(), who.name)
        self._waiting.append(waiter)
        limit_s = self._limits.max_wait_s
        if timeout_s is None or limit_s < timeout_s:
            await self._wait(waiter, limit_s, lambda: self._full(model))
        else:
            await self._wait(waiter, timeout_s, DeadlineExceeded)

    def change(self, limits: AdmissionLimits) -> None:
        """Hold to other limits from now on; who is in stays in."""
        self._limits = limits
        self._admit_waiting()

    def check_open(self) -> None:
        """Refuse who would bring new work.

        Raises:
            ServerDraining: no one is let in any more.
        """
        if self._is_closed:
            raise ServerDraining

    def leave(self, model: str) -> None:
        """Give a place back."""
        self._running[model] -= 1
        self._total -= 1
        if not self._running[model]:
            del self._running[model]
        self._admit_waiting()

    def close(self) -> None:
        """Let no one in any more; who waits is refused."""
        self._is_closed = True
        for waiter in self._waiting:
            if not waiter.admitted.done():
                waiter.admitted.set_exception(ServerDraining())
        self._waiting.clear()

    async def _wait(self, waiter: _Waiter, timeout_s: float, late: Callable[[], GatewayError]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.admitted
        except TimeoutError:
            self._forget(waiter)
            raise late() from None
        except asyncio.CancelledError:
            self._forget(waiter)
            raise

    def _forget(self, waiter: _Waiter) -> None:
        """Take back what the waiter waited for, or was just given."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.admitted.done() and not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
            self.leave(waiter.model)

    def _admit_waiting(self) -> None:
        for waiter in sorted(self._waiting, key=lambda one: -one.priority):
            if not waiter.admitted.done() and self._has_place(waiter.model):
                self._waiting.remove(waiter)
                self._take(waiter.model)
                waiter.admitted.set_result(None)

    def _has_place(self, model: str) -> bool:
        most = self._own(model).max_requests or self._limits.max_requests_per_model
        return self._total < self._limits.max_requests and self._running[model] < most

    def _may_wait(self, model: str) -> bool:
        most = self._own(model).max_waiting
        is_over = most is not None and sum(one.model == model for one in self._waiting) >= most
        return len(self._waiting) < self._limits.max_waiting and not is_over

    def _check_share(self, who: Principal) -> None:
        """Refuse a caller who has its share of the places to wait in."""
        waiting = sum(one.caller == who.name for one in self._waiting)
        if waiting >= self._share(who, self._limits.max_waiting):
            raise QueueFull("one caller", waiting)

    def _share(self, who: Principal, whole: int) -> float:
        """Return how much of `whole` a caller may have, at least one of it; all of it who is not known by name."""
        share = self._limits.queue_share if who.limits.queue_share is None else who.limits.queue_share
        return max(1.0, whole * share) if who.name else whole

    def _take(self, model: str) -> None:
        self._running[model] += 1
        self._total += 1

    def _full(self, model: str) -> QueueFull:
        if self._total >= self._limits.max_requests:
            return QueueFull("the server", self._total + len(self._waiting))
        return QueueFull(model, self._running[model] + sum(one.model == model for one in self._waiting))


@dataclass(eq=False, slots=True)
class _Waiter:
    model: str
    priority: int
    admitted: asyncio.Future[None]
    caller: str = ""
