"""One request between its arrival and its end, as the service that hands it to the engine holds it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Generic, Self

from worker.errors import ClientGone, WorkerError
from worker.events import Completed, Event, Failed
from worker.job import P, R
from worker.outbox import Outbox
from worker.services.desk import Desk
from worker.services.edge import Call
from worker.services.requests import OpenRequest


class Handed(Generic[R, P]):
    """Lists a request among the open ones, hands it in and takes its events; leaving early ends it in the engine.

    Args:
        desk: where to hand it in.
        call: whose it is; its `usage` follows what fails and what is complete.
        request_id: what people know it by.
        method: name of the RPC.
        outbox: of its events; None: one that holds nothing back.
    """

    def __init__(
        self, desk: Desk[R, P], call: Call, request_id: str, method: str, outbox: Outbox | None = None
    ) -> None:
        self._desk = desk
        self._call = call
        self._open = OpenRequest(request_id, method, call.principal, task=asyncio.current_task())
        call.take_end = self._open.take_end
        self._outbox = Outbox(desk.outbox_bytes) if outbox is None else outbox
        self._is_in_engine = False

    async def __aenter__(self) -> Self:
        """List the request among the open ones."""
        self._desk.requests.add(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request in the engine unless it has ended."""
        self._end(ClientGone())
        self._outbox.close()
        self._desk.requests.remove(self._open)

    async def take(self) -> Event:
        """Return the next event; the last is `Completed`.

        Raises:
            Exception: the request failed with it.
        """
        event = await self._outbox.take()
        self._is_in_engine = not isinstance(event, Completed | Failed)
        if isinstance(event, Failed):
            self._call.usage = event.usage
            raise event.error
        if isinstance(event, Completed):
            self._call.usage = event.usage
        return event

    def _end(self, error: WorkerError) -> None:
        """End the request in the engine with `error`, unless it has ended."""
        if self._is_in_engine and self._open.key is not None:
            self._desk.engine.cancel(self._open.key, error)

    def _deadline(self) -> float | None:
        """Return the caller's deadline in seconds of the engine's clock; None where there is none."""
        remaining_s = self._call.time_remaining()
        return None if remaining_s is None else time.monotonic() + remaining_s

    def _submit(self, request: R) -> None:
        """Hand the request in.

        Raises:
            WorkerError: it is not taken, or was ended meanwhile.
        """
        self._open.check()
        self._desk.engine.submit(request, self._outbox)
        self._open.key = request.key
        self._is_in_engine = True
