"""One RPC on its way through the gateway: from the first bytes of the request to the status of the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.admission import Admission
from gateway.attempts import Asked, Attempts, Context, Retries, is_cancelled
from gateway.catalogue import Catalogue
from gateway.ending import UNOBSERVED, Ending, Observer
from gateway.envelope import MODEL_FIELD, REQUEST_ID_FIELD, read_envelope, text_field
from gateway.errors import DeadlineExceeded, GatewayError, InternalError
from gateway.lost_worker import BUG_CODES, death_of, has_details
from gateway.metadata import for_worker, public
from gateway.model_status import Exit, ModelState, WorkerPool
from gateway.principal import caller
from gateway.request_errors import MalformedRequest, StreamIdle
from gateway.requests import Request, RequestKey, Requests
from gateway.sight import seen
from gateway.status import CLIENT_GONE, status_of
from gateway.tasks import check_task
from gateway.trace import NewTrace, told_trace
from gateway.write_watch import WriteWatch

STATUS_LIMIT_S = 1.0  # for a status to be sent to a client that takes nothing


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """How long an RPC may take.

    Attributes:
        max_request_s: the whole of it, where the client gave no shorter deadline.
        first_message_s: until the first message of a client.
        slow_reader_s: how long a client may take nothing of what waits for it.
    """

    max_request_s: float
    first_message_s: float
    slow_reader_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RelayParts:
    """What an exchange works with; `observer` is told of every end, `new_trace` gives the trace of each RPC."""

    catalogue: Catalogue
    admission: Admission
    requests: Requests
    workers: WorkerPool
    limits: RelayLimits
    log: FilteringBoundLogger
    retries: Retries = field(default_factory=Retries)
    observer: Observer = UNOBSERVED
    new_trace: NewTrace = told_trace


class WorkerProtocolError(Exception):
    """Raised when a worker's answer is not one that its method can have."""


class Exchange:
    """One RPC, from `async with` on. `begin` gives the first message of the answer, `rest` the others.

    The context manager is the servicer's edge: whatever is raised within it becomes the status of the RPC.
    """

    def __init__(self, method: str, request_streams: bool, context: Context, parts: RelayParts) -> None:
        """Begin to handle an RPC of `method` in the current task."""
        self._method = method
        self._request_streams = request_streams
        self._context = context
        self._parts = parts
        self._ending = Ending(method, trace=parts.new_trace(context.invocation_metadata()))
        limit_s: float | None = context.time_remaining()
        max_s = parts.limits.max_request_s
        self._deadline_s = self._ending.started_s + (max_s if limit_s is None else min(limit_s, max_s))
        self._request: Request | None = None
        self._watch: WriteWatch | None = None
        self._held_bytes = 0
        self._is_admitted = False
        self._attempts = Attempts(context, parts.workers, self._ending, self._remaining_s, parts.retries)

    async def __aenter__(self) -> Self:
        """Return the exchange itself."""
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the RPC with a status where `error` is one that the client can be told, and let go of everything."""
        try:
            if isinstance(error, asyncio.CancelledError):
                await self._fail_if_aborted()
            elif isinstance(error, CLIENT_GONE):
                raise asyncio.CancelledError from None
            elif isinstance(error, Exception):
                await self._fail(error)
        finally:
            self._close()

    async def begin(self, source: Any) -> bytes | None:
        """Bring the request to a worker and return the first message of its answer, None where it has none.

        Args:
            source: the iterator over the client's messages.

        Raises:
            GatewayError: the request was not taken, or its worker failed.
            AioRpcError: the status that the worker gave.
        """
        body = await self._first_message()
        envelope = read_envelope(body)
        self._ending.addressed(envelope)
        model = seen(self._parts.catalogue, envelope.model)
        request = self._note(model.name, envelope.request_id or secrets.token_hex(8))
        added = b"" if envelope.model == model.name else text_field(MODEL_FIELD, model.name)
        if not envelope.request_id:
            added += text_field(REQUEST_ID_FIELD, request.key.request_id)
        self._parts.admission.hold(len(body), caller())
        self._held_bytes = len(body)
        await self._parts.admission.enter(model.name, envelope.priority, self._remaining_s(), caller())
        self._is_admitted = True
        self._ending.admitted()
        if self._parts.workers.state(model.name).state is ModelState.UNLOADED:
            await check_task(self._method, model, self._parts.catalogue, self._remaining_s())
        sent, trace = self._context.invocation_metadata(), self._ending.trace
        metadata = for_worker(sent, request, envelope, caller().group, trace)
        asked = Asked(self._method, self._request_streams, (body, added), source, metadata)
        first = await self._attempts.first_message(request, asked)
        self._ending.answered()
        self._release_bytes()
        return first

    @property
    def rest(self) -> AsyncIterator[bytes]:
        """The messages of the answer after the first."""
        return self._attempts.rest

    @property
    def request(self) -> Request:
        """The request; there is one once it has begun."""
        if self._request is None:
            raise RuntimeError("the exchange has not begun")
        return self._request

    @property
    def events_sent(self) -> int:
        """How many messages the client has taken."""
        return self._request.events_sent if self._request is not None else 0

    def pace(self) -> Callable[[], None]:
        """Return what is to be called for each message that the client has taken."""
        return self._parts.observer.pace(self.request.model)

    async def write(self, message: bytes) -> None:
        """Have the client take a message."""
        self.request.is_writing = True
        await self._context.write(message)
        self.request.is_writing = False
        self.request.events_sent += 1

    async def finish(self) -> None:
        """Take over the worker's trailers; its answer is complete and its status OK."""
        trailers = await self._attempts.trailers()
        self._context.set_trailing_metadata(public(trailers))
        self._ending.ended(grpc.StatusCode.OK, trailers)

    async def _fail(self, error: Exception) -> None:
        """End the RPC with the status that says what `error` was; raises gRPC's own signal of that."""
        explained = await self._explain(error)
        if isinstance(explained, GatewayError):
            code, message, trailers = status_of(explained)
        else:
            code, message = explained.code(), explained.details() or ""
            trailers = public(explained.trailing_metadata() or ())
        self._ending.ended(code, trailers)
        if self._request is not None:
            self._request.leaves()
        try:
            async with asyncio.timeout(STATUS_LIMIT_S):
                await self._context.abort(code, message, trailers)
        except (TimeoutError, CLIENT_GONE):
            # The library has the status and sends it once the client, if it is still there, takes what is before it.
            raise asyncio.CancelledError from None

    async def _fail_if_aborted(self) -> None:
        """End the RPC with its status where the gateway ended it, not the client; else return, to be cancelled."""
        error = self._request.take_abort() if self._request is not None else None
        ended = None if error is not None or is_cancelled() else self._attempts.known_exit()
        if ended is not None:
            error = self._death(ended)
        if error is not None:
            await self._fail(error)

    def _close(self) -> None:
        """Let go of everything that the RPC held."""
        if self._watch is not None:
            self._watch.close()
        self._release_bytes()
        if self._request is not None:
            self._attempts.drop(self._request)
            self._parts.requests.remove(self._request)
        self._leave()
        self._log_end()

    async def _first_message(self) -> bytes:
        """Return the first message; unlike the iterator over all of them, the call keeps no reference to it."""
        limit_s, remaining_s = self._parts.limits.first_message_s, self._remaining_s()
        try:
            async with asyncio.timeout(min(limit_s, remaining_s)):
                message = await self._context.read()
        except TimeoutError:
            raise (StreamIdle(limit_s) if limit_s < remaining_s else DeadlineExceeded()) from None
        if not isinstance(message, bytes):
            raise MalformedRequest("the stream ended before its first message")
        return message

    def _note(self, model: str, request_id: str) -> Request:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an exchange runs in a task")
        request = Request(RequestKey(caller().name, request_id), model, self._method, task)
        self._parts.requests.add(request)
        self._request = request
        self._watch = WriteWatch(request, self._deadline_s, self._parts.limits.slow_reader_s)
        return request

    async def _explain(self, error: Exception) -> GatewayError | grpc.aio.AioRpcError:
        if isinstance(error, GatewayError):
            return error
        if not isinstance(error, grpc.aio.AioRpcError):
            return self._bug(error, type(error).__name__)
        ended = await self._attempts.exit_behind(error)
        if ended is not None:
            return self._death(ended)
        if error.code() in BUG_CODES and not has_details(error):
            return self._bug(error, error.code().name)
        return error

    def _bug(self, error: Exception, what: str) -> InternalError:
        incident = secrets.token_hex(4)
        self._parts.log.error("request failed unexpectedly", incident=incident, what=what, exc_info=error)
        return InternalError(incident)

    def _death(self, ended: Exit) -> GatewayError:
        return death_of(ended, self._request.model if self._request is not None else "", self.events_sent)

    def _leave(self) -> None:
        if self._is_admitted and self._request is not None:
            self._is_admitted = False
            self._parts.admission.leave(self._request.model)

    def _release_bytes(self) -> None:
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._parts.admission.drop(held, caller())

    def _remaining_s(self) -> float:
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineExceeded
        return remaining_s

    def _log_end(self) -> None:
        key = self._request.key if self._request is not None else RequestKey("", "")
        model = self._request.model if self._request is not None else ""
        if model:
            self._parts.requests.count_end(model, self._ending.status)
        self._ending.write(self._parts.log, model, key.request_id, self.events_sent)
        self._ending.tell(self._parts.observer, model, key.request_id, self.events_sent)
