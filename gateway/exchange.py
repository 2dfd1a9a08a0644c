"""One RPC on its way through the gateway: from the first bytes of the request to the status of the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.admission import Admission
from gateway.body import Body
from gateway.catalogue import Catalogue
from gateway.ending import Ending
from gateway.envelope import MODEL_FIELD, REQUEST_ID_FIELD, Envelope, read_envelope, text_field
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    MalformedRequest,
    ModelBackingOff,
    ModelUnloading,
    StreamIdle,
    WorkerRestarting,
)
from gateway.lost_worker import death_of, exit_behind, has_details
from gateway.model_status import Exit, ExitCause, Instance, Lease, ModelState, WorkerPool
from gateway.requests import Request, RequestKey, Requests
from gateway.status import CLIENT_GONE, status_of
from gateway.stream_call import StreamCall
from gateway.tasks import check_task
from gateway.write_watch import WriteWatch

PRIVATE_PREFIX = "x-pomona-"
PASSED_KEYS = frozenset({"traceparent", "tracestate", "x-request-id"})
STATUS_LIMIT_S = 1.0  # for a status to be sent to a client that takes nothing
MAX_RETRIED_BYTES = 1024 * 1024  # a larger request may be what took its worker with it
BUG_CODES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})

Parts = tuple[bytes, bytes]  # of a request: what the client sent, and what is added to it
Metadata = tuple[tuple[str, str | bytes], ...]
Call = Any  # a call of grpc.aio that streams its answer, or a StreamCall
Context = Any  # grpc.aio.ServicerContext


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
    """What an exchange works with."""

    catalogue: Catalogue
    admission: Admission
    requests: Requests
    workers: WorkerPool
    limits: RelayLimits
    log: FilteringBoundLogger


class WorkerProtocolError(Exception):
    """Raised when a worker's answer is not one that its method can have."""


class _WorkerLost(Exception):
    """Raised when a worker went away before it began the request."""


class Exchange:
    """One RPC, from `async with` on. `begin` gives the first message of the answer, `rest` the others.

    The context manager is the servicer's edge: whatever is raised within it becomes the status of the RPC.
    """

    def __init__(self, method: str, request_streams: bool, context: Context, parts: RelayParts) -> None:
        """Begin to handle an RPC of `method` in the current task."""
        self.rest: AsyncIterator[bytes] = _nothing()
        self._method = method
        self._request_streams = request_streams
        self._context = context
        self._parts = parts
        self._ending = Ending(method)
        limit_s: float | None = context.time_remaining()
        max_s = parts.limits.max_request_s
        self._deadline_s = self._ending.started_s + (max_s if limit_s is None else min(limit_s, max_s))
        self._request: Request | None = None
        self._watch: WriteWatch | None = None
        self._held_bytes = 0
        self._is_admitted = False
        self._has_begun = False
        self._lease: Lease | None = None
        self._call: Call | None = None

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
        model = self._parts.catalogue.resolve(envelope.model)
        request = self._note(model.name, envelope.request_id or secrets.token_hex(8))
        added = b"" if envelope.model == model.name else text_field(MODEL_FIELD, model.name)
        if not envelope.request_id:
            added += text_field(REQUEST_ID_FIELD, request.key.request_id)
        self._parts.admission.hold(len(body))
        self._held_bytes = len(body)
        await self._parts.admission.enter(model.name, envelope.priority, self._remaining_s())
        self._is_admitted = True
        if self._parts.workers.state(model.name).state is ModelState.UNLOADED:
            await check_task(self._method, model, self._parts.catalogue, self._remaining_s())
        metadata = self._metadata(request, envelope)
        try:
            first = await self._attempt(request, (body, added), source, metadata)
        except _WorkerLost:
            self._drop_worker(request)
            if self._request_streams or len(body) > MAX_RETRIED_BYTES:
                raise WorkerRestarting(request.model) from None
            first = await self._second_attempt(request, (body, added), source, metadata)
        self._ending.answered()
        self._release_bytes()
        return first

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

    async def write(self, message: bytes) -> None:
        """Have the client take a message."""
        self.request.is_writing = True
        await self._context.write(message)
        self.request.is_writing = False
        self.request.events_sent += 1

    async def finish(self) -> None:
        """Take over the worker's trailers; its answer is complete and its status OK."""
        trailers = tuple(await self._call.trailing_metadata()) if self._call is not None else ()
        self._context.set_trailing_metadata(_public(trailers))
        self._ending.ended(grpc.StatusCode.OK, trailers)

    async def _fail(self, error: Exception) -> None:
        """End the RPC with the status that says what `error` was; raises gRPC's own signal of that."""
        explained = await self._explain(error)
        if isinstance(explained, GatewayError):
            code, message, trailers = status_of(explained)
        else:
            code, message = explained.code(), explained.details() or ""
            trailers = _public(explained.trailing_metadata() or ())
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
        if error is None and not _is_cancelled() and self._lease is not None and self._lease.instance.exit.done():
            error = self._death(self._lease.instance.exit.result())
        if error is not None:
            await self._fail(error)

    def _close(self) -> None:
        """Let go of everything that the RPC held."""
        if self._watch is not None:
            self._watch.close()
        self._release_bytes()
        if self._request is not None:
            self._drop_worker(self._request)
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
        request = Request(RequestKey("", request_id), model, self._method, task)
        self._parts.requests.add(request)
        self._request = request
        self._watch = WriteWatch(request, self._deadline_s, self._parts.limits.slow_reader_s)
        return request

    def _metadata(self, request: Request, envelope: Envelope) -> Metadata:
        """Return what the worker is told, but for its secret; of the client's own keys only the known ones pass."""
        passed = [(key, value) for key, value in self._context.invocation_metadata() if key in PASSED_KEYS]
        return (
            *passed,
            ("x-pomona-model", request.model),
            ("x-pomona-request-id", request.key.request_id),
            ("x-pomona-priority", str(envelope.priority)),
            ("x-pomona-principal", request.key.principal),
        )

    async def _attempt(self, request: Request, body: Parts, source: Any, metadata: Metadata) -> bytes | None:
        """Call a worker and return the first message of its answer."""
        if request.error is not None:
            raise request.error
        self._lease = await self._parts.workers.acquire(request.model, self._remaining_s())
        instance = self._lease.instance
        call = self._start(instance, body, source, (*metadata, ("x-pomona-secret", instance.secret)))
        request.called(instance, call.cancel)
        self._ending.called()
        try:
            await self._forward_initial(await call.initial_metadata())
            first = await anext(self.rest, None)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            if self._has_begun or not await self._was_lost(request, instance, error):
                raise
            raise _WorkerLost from None
        self._has_begun = True
        return first

    async def _second_attempt(self, request: Request, body: Parts, source: Any, metadata: Metadata) -> bytes | None:
        """Call the next worker after the one that went away before it began."""
        try:
            return await self._attempt(request, body, source, metadata)
        except _WorkerLost:
            raise WorkerRestarting(request.model) from None
        except ModelBackingOff as error:
            raise WorkerRestarting(request.model, error.retry_after_s) from None

    def _start(self, instance: Instance, body: Parts, source: Any, metadata: Metadata) -> Call:
        channel: Any = instance.channel
        if self._request_streams:
            stream = channel.stream_stream(self._method)(timeout=self._remaining_s(), metadata=metadata)
            call = StreamCall(stream, b"".join(body), source)
        else:
            method = channel.unary_stream(self._method, request_serializer=Body.take)
            call = method(Body(*body), timeout=self._remaining_s(), metadata=metadata)
        self._call = call
        self.rest = aiter(call)
        call.add_done_callback(self._call_done)
        instance.exit.add_done_callback(self._worker_gone)
        return call

    def _call_done(self, _call: Call) -> None:
        """Hold the worker no longer than the call lasts, however slow the client reads."""
        if self._lease is not None:
            self._lease.release()

    def _worker_gone(self, _exit: asyncio.Future[Exit]) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _forward_initial(self, initial: Any) -> None:
        # A worker that begins says so with a key; a call that broke gives empty metadata.
        self._has_begun = bool(initial)
        public = _public(initial)
        if public:
            self.request.is_writing = True
            await self._context.send_initial_metadata(public)
            self.request.is_writing = False

    async def _was_lost(self, request: Request, instance: Instance, error: BaseException) -> bool:
        """Say whether the worker went away under the call; one that was unloaded says so."""
        if isinstance(error, grpc.aio.AioRpcError):
            ended = await exit_behind(error, instance)
        elif request.error is None and not _is_cancelled() and instance.exit.done():
            ended = instance.exit.result()
        else:
            ended = None
        if ended is not None and ended.cause is ExitCause.UNLOADED:
            raise ModelUnloading(request.model)
        return ended is not None

    async def _explain(self, error: Exception) -> GatewayError | grpc.aio.AioRpcError:
        if isinstance(error, GatewayError):
            return error
        if not isinstance(error, grpc.aio.AioRpcError):
            return self._bug(error, type(error).__name__)
        if self._lease is not None:
            ended = await exit_behind(error, self._lease.instance)
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

    def _drop_worker(self, request: Request) -> None:
        request.waits()
        call, self._call = self._call, None
        lease, self._lease = self._lease, None
        if call is not None:
            call.cancel()
        if lease is not None:
            lease.instance.exit.remove_done_callback(self._worker_gone)
            lease.release()

    def _leave(self) -> None:
        if self._is_admitted and self._request is not None:
            self._is_admitted = False
            self._parts.admission.leave(self._request.model)

    def _release_bytes(self) -> None:
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._parts.admission.drop(held)

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


def _public(metadata: Any) -> Metadata:
    """Return the pairs that clients may see."""
    return tuple((key, value) for key, value in metadata if not key.startswith(PRIVATE_PREFIX))


def _is_cancelled() -> bool:
    """Say whether someone cancelled this task; a call that was cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _nothing() -> AsyncIterator[bytes]:
    for message in ():
        yield message
