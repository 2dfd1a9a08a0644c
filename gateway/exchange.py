"""One RPC on its way through the gateway: from the first bytes of the request to the status of the answer."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.admission import Admission
from gateway.catalogue import Catalogue
from gateway.envelope import MODEL_FIELD, REQUEST_ID_FIELD, Envelope, read_envelope, with_text_field
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    MalformedRequest,
    ModelBackingOff,
    ModelUnloading,
    StreamIdle,
    WorkerDied,
    WorkerRestarting,
    WorkerStalled,
)
from gateway.model_status import Exit, ExitCause, Instance, Lease, WorkerPool
from gateway.requests import Request, RequestKey, Requests
from gateway.status import DETAILS_KEY, status_of
from gateway.stream_call import StreamCall

PRIVATE_PREFIX = "x-pomona-"
PASSED_KEYS = frozenset({"traceparent", "tracestate", "x-request-id"})
BEGUN_GAP_S = 0.02  # a broken call gives empty initial metadata too, but then its end comes at once
EXIT_KNOWN_S = 0.05  # how long after a broken connection the news of the worker's end may take
LOST_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
BUG_CODES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})

Metadata = tuple[tuple[str, str | bytes], ...]
Call = Any  # a call of grpc.aio that streams its answer, or a StreamCall
Context = Any  # grpc.aio.ServicerContext


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """How long an RPC may take.

    Attributes:
        max_request_s: the whole of it, where the client gave no shorter deadline.
        first_message_s: until the first message of a client's stream.
    """

    max_request_s: float
    first_message_s: float


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
        self.events_sent = 0
        self._method = method
        self._request_streams = request_streams
        self._context = context
        self._parts = parts
        self._started_s = time.monotonic()
        limit_s: float | None = context.time_remaining()
        max_s = parts.limits.max_request_s
        self._deadline_s = self._started_s + (max_s if limit_s is None else min(limit_s, max_s))
        self._request: Request | None = None
        self._is_admitted = False
        self._has_begun = False
        self._outcome = "CANCELLED"
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
            elif isinstance(error, Exception):
                await self._fail(error)
        finally:
            self._close()

    async def begin(self, source: Any) -> bytes | None:
        """Bring the request to a worker and return the first message of its answer, None where it has none.

        Args:
            source: the request's bytes, or the iterator over the client's stream.

        Raises:
            GatewayError: the request was not taken, or its worker failed.
            AioRpcError: the status that the worker gave.
        """
        body: bytes = await self._first_message(source) if self._request_streams else source
        envelope = read_envelope(body)
        model = self._parts.catalogue.resolve(envelope.model)
        request = self._note(model.name, envelope.request_id or secrets.token_hex(8))
        if envelope.model != model.name:
            body = with_text_field(body, MODEL_FIELD, model.name)
        if not envelope.request_id:
            body = with_text_field(body, REQUEST_ID_FIELD, request.key.request_id)
        await self._parts.admission.enter(model.name, envelope.priority, self._remaining_s())
        self._is_admitted = True
        metadata = self._metadata(request, envelope)
        try:
            return await self._attempt(request, body, source, metadata)
        except _WorkerLost:
            self._drop_worker(request)
            if self._request_streams:
                raise WorkerRestarting(request.model) from None
        return await self._second_attempt(request, body, source, metadata)

    async def finish(self) -> None:
        """Take over the worker's trailers; its answer is complete and its status OK."""
        trailers = await self._call.trailing_metadata() if self._call is not None else ()
        self._context.set_trailing_metadata(tuple(trailers))
        self._outcome = "OK"

    async def _fail(self, error: Exception) -> None:
        """End the RPC with the status that says what `error` was; raises gRPC's own signal of that."""
        explained = await self._explain(error)
        if isinstance(explained, GatewayError):
            code, message, trailers = status_of(explained)
        else:
            code, message = explained.code(), explained.details() or ""
            trailers = tuple(explained.trailing_metadata() or ())
        self._outcome = code.name
        await self._context.abort(code, message, trailers)

    async def _fail_if_aborted(self) -> None:
        """End the RPC with its status where the gateway ended it, not the client; else return, to be cancelled."""
        error = self._request.take_abort() if self._request is not None else None
        if error is None and not _is_cancelled() and self._lease is not None and self._lease.instance.exit.done():
            error = self._death(self._lease.instance.exit.result())
        if error is not None:
            await self._fail(error)

    def _close(self) -> None:
        """Let go of everything that the RPC held."""
        if self._request is not None:
            self._drop_worker(self._request)
            self._parts.requests.remove(self._request)
        self._leave()
        self._log_end()

    async def _first_message(self, source: AsyncIterator[bytes]) -> bytes:
        limit_s = self._parts.limits.first_message_s
        try:
            async with asyncio.timeout(min(limit_s, self._remaining_s())):
                message = await anext(aiter(source), None)
        except TimeoutError:
            raise StreamIdle(limit_s) from None
        if message is None:
            raise MalformedRequest("the stream ended before its first message")
        return message

    def _note(self, model: str, request_id: str) -> Request:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an exchange runs in a task")
        request = Request(RequestKey("", request_id), model, self._method, task)
        self._parts.requests.add(request)
        self._request = request
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

    async def _attempt(self, request: Request, body: bytes, source: Any, metadata: Metadata) -> bytes | None:
        """Call a worker and return the first message of its answer."""
        self._lease = await self._parts.workers.acquire(request.model, self._remaining_s())
        instance = self._lease.instance
        call = self._start(instance, body, source, (*metadata, ("x-pomona-secret", instance.secret)))
        request.called(instance, call.cancel)
        begun_s = float("inf")
        try:
            await self._forward_initial(await call.initial_metadata())
            begun_s = time.monotonic()
            first = await anext(self.rest, None)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            has_begun = self._has_begun or time.monotonic() - begun_s > BEGUN_GAP_S
            if has_begun or not await self._was_lost(request, instance, error):
                raise
            raise _WorkerLost from None
        self._has_begun = True
        return first

    async def _second_attempt(self, request: Request, body: bytes, source: Any, metadata: Metadata) -> bytes | None:
        """Call the next worker after the one that went away before it began."""
        try:
            return await self._attempt(request, body, source, metadata)
        except _WorkerLost:
            raise WorkerRestarting(request.model) from None
        except ModelBackingOff as error:
            raise WorkerRestarting(request.model, error.retry_after_s) from None

    def _start(self, instance: Instance, body: bytes, source: Any, metadata: Metadata) -> Call:
        channel: Any = instance.channel
        if self._request_streams:
            stream = channel.stream_stream(self._method)(timeout=self._remaining_s(), metadata=metadata)
            call = StreamCall(stream, body, source)
        else:
            call = channel.unary_stream(self._method)(body, timeout=self._remaining_s(), metadata=metadata)
        self._call = call
        self.rest = aiter(call)
        call.add_done_callback(self._call_done)
        instance.exit.add_done_callback(self._worker_gone)
        return call

    def _call_done(self, _call: Call) -> None:
        """Hold the worker no longer than the call lasts, however slow the client reads."""
        if self._lease is not None:
            self._lease.release()
        if self._has_begun:
            self._leave()

    def _worker_gone(self, _exit: asyncio.Future[Exit]) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _forward_initial(self, initial: Any) -> None:
        self._has_begun = bool(initial)
        public = tuple((key, value) for key, value in initial if not key.startswith(PRIVATE_PREFIX))
        if public:
            await self._context.send_initial_metadata(public)

    async def _was_lost(self, request: Request, instance: Instance, error: BaseException) -> bool:
        """Say whether the worker went away under the call; one that was unloaded says so."""
        if isinstance(error, grpc.aio.AioRpcError):
            ended = await _exit_behind(error, instance)
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
            ended = await _exit_behind(error, self._lease.instance)
            if ended is not None:
                return self._death(ended)
        if error.code() in BUG_CODES and not _has_details(error):
            return self._bug(error, error.code().name)
        return error

    def _bug(self, error: Exception, what: str) -> InternalError:
        incident = secrets.token_hex(4)
        self._parts.log.error("request failed unexpectedly", incident=incident, what=what, exc_info=error)
        return InternalError(incident)

    def _death(self, ended: Exit) -> GatewayError:
        model = self._request.model if self._request is not None else ""
        if ended.cause is ExitCause.UNLOADED:
            return ModelUnloading(model)
        if ended.cause is ExitCause.STALLED:
            return WorkerStalled(model, self.events_sent)
        name = signal.Signals(ended.signal).name if ended.signal is not None else ""
        return WorkerDied(model, self.events_sent, name, ended.code)

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

    def _remaining_s(self) -> float:
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineExceeded
        return remaining_s

    def _log_end(self) -> None:
        self._parts.log.info(
            "request ended",
            method=self._method,
            model=self._request.model if self._request is not None else "",
            request_id=self._request.key.request_id if self._request is not None else "",
            status=self._outcome,
            events_sent=self.events_sent,
            duration_ms=round((time.monotonic() - self._started_s) * 1000, 1),
        )


async def _exit_behind(error: grpc.aio.AioRpcError, instance: Instance) -> Exit | None:
    """Return how the worker ended where that is what broke the call; None where the worker itself gave the status."""
    if error.code() not in LOST_CODES or _has_details(error):
        return None
    await asyncio.wait([instance.exit], timeout=EXIT_KNOWN_S)
    return instance.exit.result() if instance.exit.done() else Exit(ExitCause.DIED)


def _has_details(error: grpc.aio.AioRpcError) -> bool:
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def _is_cancelled() -> bool:
    """Say whether someone cancelled this task; a call that was cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _nothing() -> AsyncIterator[bytes]:
    for message in ():
        yield message
