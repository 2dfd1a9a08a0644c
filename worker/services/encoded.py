"""One request for vectors or scores between its arrival and its end, as its service holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from models.embedding.framing import Framed
from worker.embedding.request import EncodeRequest, VectorWish
from worker.envelope import Envelope
from worker.errors import ClientGone
from worker.events import Completed, Event, Failed, Started
from worker.outbox import Outbox
from worker.services.desk import Desk
from worker.services.edge import Call
from worker.services.requests import OpenRequest
from worker.workloads.embedding import EncodePlan

EncodeDesk = Desk[EncodeRequest, EncodePlan]


class Encoded:
    """Hands a request to the engine and takes its events; leaving early ends it there at once.

    Args:
        desk: where to hand it in.
        call: whose it is; its `usage` follows the events.
        envelope: of the request.
        method: name of the RPC.
    """

    def __init__(self, desk: EncodeDesk, call: Call, envelope: Envelope, method: str) -> None:
        self._desk = desk
        self._call = call
        self._envelope = envelope
        self._open = OpenRequest(envelope.request_id, method, call.principal)
        self._outbox = Outbox(desk.outbox_bytes)
        self._is_in_engine = False

    async def __aenter__(self) -> Encoded:
        """List the request among the open ones."""
        self._desk.requests.add(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request in the engine unless it has ended."""
        if self._is_in_engine and self._open.key is not None:
            self._desk.engine.cancel(self._open.key, ClientGone())
        self._outbox.close()
        self._desk.requests.remove(self._open)

    def submit(self, inputs: Sequence[Framed], wish: VectorWish | None = None) -> None:
        """Hand the request in.

        Args:
            inputs: its tokens.
            wish: which vectors are wanted; None: a yes or no.

        Raises:
            WorkerError: it is not taken, or was ended meanwhile.
        """
        self._open.check()
        remaining_s = self._call.time_remaining()
        request = EncodeRequest(
            request_id=self._envelope.request_id,
            inputs=tuple(each.ids for each in inputs),
            wish=wish,
            priority=self._envelope.priority,
            deadline=None if remaining_s is None else time.monotonic() + remaining_s,
        )
        self._desk.engine.submit(request, self._outbox)
        self._open.key = request.key
        self._is_in_engine = True

    async def done(self, take: Callable[[Event], None]) -> Completed:
        """Give each event to `take`, and return the last.

        Raises:
            Exception: the request failed with it.
        """
        while True:
            event = await self._outbox.take()
            self._is_in_engine = not isinstance(event, Completed | Failed)
            match event:
                case Started():
                    await self._call.begin()
                case Completed():
                    return event
                case Failed():
                    self._call.usage = event.usage
                    raise event.error
                case _:
                    take(event)
