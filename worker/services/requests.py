"""The generations that the services hold open, with what the engine does not know of them."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.errors import WorkerError

SAME_END_S = 0.5  # how far apart the same end may seem that is told in two ways


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One generation between its arrival and its end.

    Attributes:
        request_id: what people know it by; the gateway sees to it that no caller has two of one id at a time.
        method: name of its RPC.
        principal: who asked, as the gateway says.
        start_time: in seconds since 1970.
        key: what the engine knows it by; None until it is there.
        error: set when it was ended before it reached the engine.
        task: that answers it.
        on_ending: called with the seconds that are left when the worker is about to end; None: nobody needs to know.
    """

    request_id: str
    method: str
    principal: str
    start_time: float = field(default_factory=time.time)
    key: str | None = None
    error: WorkerError | None = None
    task: "asyncio.Task[None] | None" = None
    on_ending: Callable[[float], None] | None = None

    def check(self) -> None:
        """Raise the error that ended it meanwhile."""
        if self.error is not None:
            raise self.error

    def end_unhanded(self, error: WorkerError) -> None:
        """End it with `error` although the engine does not have it yet: what it waits for is given up."""
        if self.error is None:
            self.error = error
            if self.task is not None:
                self.task.cancel()

    def take_end(self) -> WorkerError | None:
        """Return what it was ended with where that cancelled its task, and not its caller; the task goes on."""
        if self.error is None or self.task is None or self.task.uncancel() > 0:
            return None
        return self.error


class OpenRequests:
    """Open requests; belongs to the event loop.

    Args:
        now: monotonic time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._requests: dict[OpenRequest, None] = {}
        self._end_s = math.inf

    def add(self, request: OpenRequest) -> None:
        """Take a request in; one that was on its way when the end was told learns of it now."""
        self._requests[request] = None
        if self._end_s < math.inf:
            _tell(request, max(0.0, self._end_s - self._now()))

    def remove(self, request: OpenRequest) -> None:
        """Forget a request that was added."""
        del self._requests[request]

    def named(self, request_id: str) -> list[OpenRequest]:
        """Return the open requests of an id: a caller that left and came back has two for a moment."""
        return [request for request in self._requests if request.request_id == request_id]

    def tell_ending(self, remaining_s: float) -> None:
        """Tell those that need to know, now or later, that the worker ends in so many seconds.

        An end that was told already is not told again, nor is a later one: the earliest counts.
        """
        end_s = self._now() + remaining_s
        if end_s > self._end_s - SAME_END_S:
            return
        self._end_s = end_s
        for request in self._requests:
            _tell(request, remaining_s)

    def end_unhanded(self, error: WorkerError) -> None:
        """End those that the engine does not have: what they wait for, such as a grammar, may take long."""
        for request in self._requests:
            if request.key is None:
                request.end_unhanded(error)

    def all(self) -> list[OpenRequest]:
        """Return the open requests, oldest first."""
        return list(self._requests)


def _tell(request: OpenRequest, remaining_s: float) -> None:
    if request.on_ending is not None:
        request.on_ending(remaining_s)
