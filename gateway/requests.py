"""The requests in flight: who they are, what they wait for, how to end one from outside, and how those before ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError
from gateway.model_status import Instance
from gateway.request_errors import DuplicateRequestId


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What a request is known by, unique while it is in flight."""

    principal: str
    request_id: str


class Request:
    """One request between its admission and its status; runs within one task.

    Attributes:
        key: what it is known by.
        model: canonical name.
        method: full name of the RPC.
        start_time_s: when it came, seconds since 1970.
        events_sent: messages that its client has taken.
        is_writing: whether its task waits for its client to take something.
        instance: the worker that has it.
        error: why it was aborted.
    """

    __slots__ = (
        "_cancel_call",
        "_is_interrupted",
        "_is_leaving",
        "_task",
        "error",
        "events_sent",
        "instance",
        "is_writing",
        "key",
        "method",
        "model",
        "start_time_s",
    )

    def __init__(self, key: RequestKey, model: str, method: str, task: asyncio.Task[object]) -> None:
        """Begin as waiting; `task` is the one that handles it."""
        self.key = key
        self.model = model
        self.method = method
        self.start_time_s = time.time()
        self.events_sent = 0
        self.is_writing = False
        self.instance: Instance | None = None
        self.error: GatewayError | None = None
        self._task = task
        self._is_interrupted = False
        self._is_leaving = False
        self._cancel_call: Callable[[], object] | None = None

    def called(self, instance: Instance, cancel_call: Callable[[], object]) -> None:
        """Note that a worker has it now; `cancel_call` ends that."""
        self.instance = instance
        self._cancel_call = cancel_call

    def waits(self) -> None:
        """Note that no worker has it (any more)."""
        self.instance = None
        self._cancel_call = None

    def abort(self, error: GatewayError) -> None:
        """End the request with `error`, whatever its task waits for; the first error stays."""
        if self._is_leaving:
            return
        if self.error is None:
            self.error = error
        if self._cancel_call is not None:
            self._cancel_call()
        if (self._cancel_call is None or self.is_writing) and not self._is_interrupted:
            self._is_interrupted = self._task.cancel()

    def is_handled_by(self, task: asyncio.Task[Any]) -> bool:
        """Say whether it is this task that handles the request."""
        return self._task is task

    def leaves(self) -> None:
        """Note that its status is on its way, which `abort` must not break off."""
        self._is_leaving = True

    def take_abort(self) -> GatewayError | None:
        """Return why it was aborted, None where its client went away: then cancellation goes on.

        A cancellation that `abort` asked for is taken back, so that the status can still be sent.
        """
        if self._is_interrupted:
            self._is_interrupted = False
            self._task.uncancel()
        return self.error if self._task.cancelling() == 0 else None


class Requests:
    """All requests in flight, and the number of those that have ended."""

    def __init__(self) -> None:
        self._by_key: dict[RequestKey, Request] = {}
        self._ended: dict[str, Counter[str]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._by_key.values()))

    def add(self, request: Request) -> None:
        """Note a request.

        Raises:
            DuplicateRequestId: the same caller has one in flight with this id.
        """
        if request.key in self._by_key:
            raise DuplicateRequestId(request.key.request_id)
        self._by_key[request.key] = request
        self._empty.clear()

    def remove(self, request: Request) -> None:
        """Forget a request that has its status."""
        if self._by_key.get(request.key) is request:
            del self._by_key[request.key]
        if not self._by_key:
            self._empty.set()

    def count_end(self, model: str, status: str) -> None:
        """Count a request of a model of the catalogue that ended with a gRPC status of this name."""
        self._ended.setdefault(model, Counter())[status] += 1

    def ended(self, model: str) -> Mapping[str, int]:
        """Return how many requests of a model have ended, by the names of their statuses."""
        return self._ended.get(model, Counter())

    def find(self, request_id: str) -> list[Request]:
        """Return the requests with this id, of all callers."""
        return [request for request in self if request.key.request_id == request_id]

    async def until_empty(self, timeout_s: float) -> bool:
        """Wait until none is left, but no longer than the limit; say whether none is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
