"""Puts the gateway's own services on a server: methods that take a request and raise what went wrong.

Only methods that a service object has are registered: the others answer gRPC's own UNIMPLEMENTED. Bytes that are no
request, more of them than such methods need, fields that are not known, and whatever a method raises become statuses
here, at the servicer's edge.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from structlog.typing import FilteringBoundLogger

from gateway.ending import UNOBSERVED, Observer
from gateway.errors import GatewayError, InternalError
from gateway.request_errors import MalformedRequest
from gateway.services.observed import observed
from gateway.services.strict import refuse_unknown
from gateway.status import CLIENT_GONE, Status, status_of
from gateway.worker_call import WorkerRefusal

MAX_CONTROL_BYTES = 64 * 1024
MessageType = TypeVar("MessageType", bound=Message)


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    methods: object,
    log: FilteringBoundLogger,
    *,
    is_timed: bool = False,
    observer: Observer = UNOBSERVED,
) -> None:
    """Have `server` answer those methods of `service` that `methods` has under the same name.

    Args:
        server: not started yet.
        service: what clients know it by.
        methods: each takes the request alone, and returns its answer or yields its answers.
        log: takes what should not happen.
        is_timed: whether they take the seconds until the caller's deadline too.
        observer: is told of every end.
    """
    built = {method.name: method for method in service.methods if hasattr(methods, method.name)}
    handlers = {
        name: _handler(method, getattr(methods, name), log, is_timed=is_timed) for name, method in built.items()
    }
    handlers = {name: observed(handler, f"/{service.full_name}/{name}", observer) for name, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _handler(
    method: MethodDescriptor, behaviour: Callable[..., Any], log: FilteringBoundLogger, *, is_timed: bool
) -> grpc.RpcMethodHandler[bytes, Message]:
    request_class = GetMessageClass(method.input_type)
    serializer = GetMessageClass(method.output_type).SerializeToString

    async def answer(body: bytes, context: Any) -> Message:
        async with ServicersEdge(context, log):
            timed = (context.time_remaining(),) if is_timed else ()
            response: Message = await behaviour(read_message(request_class, body), *timed)
        return response

    async def stream(body: bytes, context: Any) -> None:
        async with ServicersEdge(context, log), aclosing(behaviour(read_message(request_class, body))) as responses:
            async for response in responses:
                await context.write(response)

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, response_serializer=serializer)
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=serializer)


def read_message(message_class: type[MessageType], body: bytes) -> MessageType:
    """Return the message in `body`.

    Raises:
        MalformedRequest: it is not protobuf, or too large for a method that carries no content.
        UnsupportedOption: it has fields that are not known here.
    """
    if len(body) > MAX_CONTROL_BYTES:
        raise MalformedRequest(f"it is larger than the {MAX_CONTROL_BYTES} bytes that this method takes")
    try:
        request = message_class.FromString(body)
    except DecodeError:
        raise MalformedRequest("it is not protobuf") from None
    refuse_unknown(request, body)
    return request


class ServicersEdge:
    """Ends an RPC with the status that says what was raised within the `async with` block."""

    def __init__(self, context: Any, log: FilteringBoundLogger) -> None:
        """End the RPC of `context`; `log` takes what should not happen."""
        self._context = context
        self._log = log

    async def __aenter__(self) -> None:
        """Begin."""

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Turn `error` into a status, where it is one that the client can be told."""
        if not isinstance(error, Exception):
            return
        if isinstance(error, CLIENT_GONE):
            raise asyncio.CancelledError from None
        if isinstance(error, WorkerRefusal):
            await self._abort(error.status)
            return
        if not isinstance(error, GatewayError):
            incident = secrets.token_hex(4)
            what = type(error).__name__
            self._log.error("request failed unexpectedly", incident=incident, what=what, exc_info=error)
            error = InternalError(incident)
        await self._abort(status_of(error))

    async def _abort(self, status: Status) -> None:
        try:
            await self._context.abort(*status)
        except CLIENT_GONE:
            raise asyncio.CancelledError from None
