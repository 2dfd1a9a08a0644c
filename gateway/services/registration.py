"""Puts the gateway's own services on a server: methods that take a request and raise what went wrong.

Only methods that a service object has are registered: the others answer gRPC's own UNIMPLEMENTED. Bytes that are no
request, fields that are not known, and whatever a method raises become statuses here, at the servicer's edge.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError, InternalError, MalformedRequest
from gateway.services.strict import refuse_unknown
from gateway.status import status_of


def add_service(
    server: grpc.aio.Server, service: ServiceDescriptor, methods: object, log: FilteringBoundLogger
) -> None:
    """Have `server` answer those methods of `service` that `methods` has under the same name.

    Args:
        server: not started yet.
        service: what clients know it by.
        methods: each takes the request alone, and returns its answer or yields its answers.
        log: takes what should not happen.
    """
    built = {method.name: method for method in service.methods if hasattr(methods, method.name)}
    handlers = {name: _handler(method, getattr(methods, name), log) for name, method in built.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _handler(
    method: MethodDescriptor, behaviour: Callable[[Any], Any], log: FilteringBoundLogger
) -> grpc.RpcMethodHandler[bytes, Message]:
    request_class = GetMessageClass(method.input_type)
    serializer = GetMessageClass(method.output_type).SerializeToString

    async def answer(body: bytes, context: Any) -> Message:
        try:
            response: Message = await behaviour(_read(request_class, body))
        except Exception as error:
            await _abort(error, context, log)
            raise
        return response

    async def stream(body: bytes, context: Any) -> AsyncIterator[Message]:
        try:
            async for response in behaviour(_read(request_class, body)):
                yield response
        except Exception as error:  # noqa: BLE001 - the servicer's edge
            await _abort(error, context, log)

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, response_serializer=serializer)
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=serializer)


def _read(request_class: type[Message], body: bytes) -> Message:
    try:
        request = request_class.FromString(body)
    except DecodeError:
        raise MalformedRequest("it is not protobuf") from None
    refuse_unknown(request)
    return request


async def _abort(error: Exception, context: Any, log: FilteringBoundLogger) -> None:
    if not isinstance(error, GatewayError):
        incident = secrets.token_hex(4)
        log.error("request failed unexpectedly", incident=incident, what=type(error).__name__, exc_info=error)
        error = InternalError(incident)
    code, message, trailers = status_of(error)
    await context.abort(code, message, trailers)
