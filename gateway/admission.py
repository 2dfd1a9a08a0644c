"""How many requests are let in: limits for each model and for the server, a bounded room to wait in, and the drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, ServerDraining

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
    """

    max_requests: int
    max_requests_per_model: int
    max_waiting: int
    max_wait_s: float
    max_held_bytes: int = 256 * MIB


class Admission:
    """Gives out places. Lives on one event loop; whoever has a place must leave it."""

    def __init__(self, limits: AdmissionLimits) -> None:
        """Begin with every place free."""
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: list[_Waiter] = []
        self._held_bytes = 0
        self._holders = 0
        self._is_closed = False

    def hold(self, size: int) -> None:
        """Keep a request of `size` bytes until `drop` is called with the same number.

        Raises:
            QueueFull: too many bytes are kept already.
        """
        if self._held_bytes + size > self._limits.max_held_bytes:
            raise QueueFull("request bytes", self._holders)
        self._held_bytes += size
        self._holders += 1

    def drop(self, size: int) -> None:
        """Keep a request of `size` bytes no more."""
        self._held_bytes -= size
        self._holders -= 1

    async def enter(self, model: str, priority: int = 0, timeout_s: float | None = None) -> None:
        """Take a place for a request of `model`, waiting for one where none is free.

        Args:
            model: canonical name.
            priority: a higher one gets a free place first.
            timeout_s: until the caller's deadline.

        Raises:
            QueueFull: too many wait already, or no place became free within the limit.
            DeadlineExceeded: none became free before the caller's deadline.
            ServerDraining: no one is let in any more.
        """
        self.check_open()
        if self._has_place(model):
            self._take(model)
            return
        if len(self._waiting) >= self._limits.max_waiting:
            raise self._full(model)
        waiter = _Waiter(model, priority, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        limit_s = self._limits.max_wait_s
        if timeout_s is None or limit_s < timeout_s:
            await self._wait(waiter, limit_s, lambda: self._full(model))
        else:
            await self._wait(waiter, timeout_s, DeadlineExceeded)

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
        return self._total < self._limits.max_requests and self._running[model] < self._limits.max_requests_per_model

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
