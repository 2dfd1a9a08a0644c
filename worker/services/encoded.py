"""One request for vectors or scores between its arrival and its end, as its service holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.embedding.framing import Framed
from worker.embedding.request import EncodeRequest, VectorWish
from worker.envelope import Envelope
from worker.events import Completed, Event, Started
from worker.services.desk import Desk
from worker.services.edge import Call
from worker.services.handed import Handed
from worker.workloads.embedding import EncodePlan

EncodeDesk = Desk[EncodeRequest, EncodePlan]


class Encoded(Handed[EncodeRequest, EncodePlan]):
    """Hands a request to the engine once its inputs are in tokens, and takes what is computed of them.

    Args:
        desk: where to hand it in.
        call: whose it is.
        envelope: of the request.
        method: name of the RPC.
    """

    def __init__(self, desk: EncodeDesk, call: Call, envelope: Envelope, method: str) -> None:
        super().__init__(desk, call, envelope.request_id, method)
        self._envelope = envelope

    def submit(self, inputs: Sequence[Framed], wish: VectorWish | None = None) -> None:
        """Hand the request in.

        Args:
            inputs: its tokens.
            wish: which vectors are wanted; None: a yes or no.

        Raises:
            WorkerError: it is not taken, or was ended meanwhile.
        """
        self._submit(
            EncodeRequest(
                request_id=self._envelope.request_id,
                inputs=tuple(each.ids for each in inputs),
                wish=wish,
                priority=self._envelope.priority,
                deadline=self._deadline(),
            )
        )

    async def done(self, take: Callable[[Event], None]) -> Completed:
        """Give each event to `take`, and return the last.

        Raises:
            Exception: the request failed with it.
        """
        while not isinstance(event := await self.take(), Completed):
            if isinstance(event, Started):
                await self._call.begin()
            else:
                take(event)
        return event
