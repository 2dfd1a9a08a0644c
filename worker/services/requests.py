"""The generations that the services hold open, with what the engine does not know of them."""

import time
from dataclasses import dataclass, field

from worker.errors import DuplicateRequestId, WorkerError


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One generation between its arrival and its end.

    Attributes:
        method: name of its RPC.
        principal: who asked, as the gateway says.
        start_time: in seconds since 1970.
        error: set when it was ended before it reached the engine.
    """

    request_id: str
    method: str
    principal: str
    start_time: float = field(default_factory=time.time)
    error: WorkerError | None = None

    def check(self) -> None:
        """Raise the error that ended it meanwhile."""
        if self.error is not None:
            raise self.error


class OpenRequests:
    """Open requests by their ids; belongs to the event loop."""

    def __init__(self) -> None:
        self._requests: dict[str, OpenRequest] = {}

    def add(self, request: OpenRequest) -> None:
        """Take a request in.

        Raises:
            DuplicateRequestId: one with this id is open.
        """
        if request.request_id in self._requests:
            raise DuplicateRequestId(request.request_id)
        self._requests[request.request_id] = request

    def remove(self, request: OpenRequest) -> None:
        """Forget a request that was added."""
        del self._requests[request.request_id]

    def get(self, request_id: str) -> OpenRequest | None:
        """Return an open request."""
        return self._requests.get(request_id)

    def all(self) -> list[OpenRequest]:
        """Return the open requests, oldest first."""
        return list(self._requests.values())
