"""How the server takes its leave: health says so first, then connections and new requests end, then what still runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.admission import Admission
from gateway.errors import ServerDraining
from gateway.health import Health
from gateway.requests import Requests
from gateway.sections.limits import LimitSettings
from gateway.services.admin import Drained
from gateway.workers import Workers

END_LIMIT_S = 2.0  # for requests that were ended to leave, once the grace is over
SETTLE_S = 0.1  # for what came with the last packets before the connections were told to go elsewhere


@dataclass(frozen=True, slots=True)
class Drain:
    """The leave of one server.

    Attributes:
        health: what says first that nothing more should come.
        admission: what refuses new requests.
        requests: what is in flight.
        workers: those who tell their streams that the end is near.
        limits: tells how long each part takes.
        log: takes what happens.
    """

    health: Health
    admission: Admission
    requests: Requests
    workers: Workers
    limits: Callable[[], LimitSettings]
    log: FilteringBoundLogger

    async def run(self, grace_s: float) -> Drained:
        """Take no new work at once, wait for what runs, and end what is left after `grace_s` seconds."""
        self.health.drain()
        self.workers.announce_ending(grace_s)
        return await self._empty(grace_s)

    async def leave(self, hurry: asyncio.Event, close_connections: Callable[[], None]) -> None:
        """Take the leave of a server that ends afterwards.

        Health says NOT_SERVING. Where somebody looks at it, requests are still taken for the time of the notice, so
        that balancers lead them elsewhere. Then clients are told to open no more streams here (GOAWAY), and what runs
        has the grace.

        Args:
            hurry: once set, the notice is over and the grace is the short one.
            close_connections: has the library take no new connections nor streams.
        """
        limits = self.limits()
        notice_s = limits.drain_notice_s if self.health.is_watched else 0.0
        self.health.drain()
        self.workers.announce_ending(notice_s + limits.drain_grace_s)
        if notice_s:
            self.log.info("server gives notice", notice_s=notice_s)
            await _unless(hurry, asyncio.sleep(notice_s))
        close_connections()
        await _unless(hurry, asyncio.sleep(SETTLE_S))
        if not await _unless(hurry, self._empty(limits.drain_grace_s)):
            await self.run(limits.short_grace_s)

    async def _empty(self, grace_s: float) -> Drained:
        self.admission.close()
        held = list(self.requests)
        self.log.info("server drains", requests=len(held), grace_s=grace_s)
        if await self.requests.until_empty(grace_s):
            return Drained(len(held), 0)
        left = list(self.requests)
        for request in left:
            request.abort(ServerDraining())
        await self.requests.until_empty(END_LIMIT_S)
        return Drained(max(0, len(held) - len(left)), len(left))


async def _unless(hurry: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do `work` unless `hurry` is set before it is done; return whether it was done."""
    working = asyncio.ensure_future(work)
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait([working, hurried], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        hurried.cancel()
        await asyncio.wait([working, hurried])
