"""Passes RPCs on to the workers as bytes: the handlers of every relayed method, of all four kinds.

Bodies are never decoded. Every kind of RPC takes the way of `exchange.py`; what differs is how gRPC hands over the
request and takes the answer. A worker is always called as if it streamed its answer: on the wire that is the same, and
only so its initial metadata shows when it begins, not when it is done. What runs for every message is six lines.

Traps that are minded here: grpc#43462 (a call that is dropped without `cancel()` lives on), grpc#43360 (batches that
are cancelled or fail are never freed: `grpc_batches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from gateway.exchange import Exchange, RelayParts, WorkerProtocolError


@dataclass(frozen=True, slots=True)
class Cardinality:
    """Which sides of an RPC are streams."""

    request_streams: bool
    response_streams: bool


def methods_of(*services: ServiceDescriptor) -> dict[str, Cardinality]:
    """Return the full names of the services' methods with their cardinalities."""
    return {
        f"/{service.full_name}/{method.name}": Cardinality(method.client_streaming, method.server_streaming)
        for service in services
        for method in service.methods
    }


Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class Relay(grpc.GenericRpcHandler):
    """The handlers of every relayed method."""

    def __init__(self, methods: Mapping[str, Cardinality], parts: RelayParts) -> None:
        """Relay `methods`, full names, with the given parts of the gateway."""
        self._handlers: dict[str, Handler] = {
            name: _handler(name, cardinality, parts) for name, cardinality in methods.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a method; None where it is not relayed."""
        return self._handlers.get(handler_call_details.method)


def _handler(method: str, cardinality: Cardinality, parts: RelayParts) -> Handler:
    """Make a handler without serializers, so that messages stay bytes.

    For the library every request is a stream, of one message where the method says so: on the wire that is the same,
    and only so the library does not keep a large request for as long as it is answered.
    """
    streams = cardinality.request_streams

    async def answer(source: Any, context: Any) -> bytes:
        async with Exchange(method, streams, context, parts) as exchange:
            response = await exchange.begin(source)
            async for _ in exchange.rest:
                response = None
            if response is None:
                raise WorkerProtocolError(f"{method} answered with more or less than one message")
            await exchange.finish()
        return response

    async def stream(source: Any, context: Any) -> None:
        async with Exchange(method, streams, context, parts) as exchange:
            message = await exchange.begin(source)
            if message is not None:
                await exchange.write(message)
                request, sent = exchange.request, exchange.pace()
                sent()
                async for message in exchange.rest:
                    request.is_writing = True
                    await context.write(message)
                    request.is_writing = False
                    request.events_sent += 1
                    sent()
            await exchange.finish()

    if cardinality.response_streams:
        return grpc.stream_stream_rpc_method_handler(stream)
    return grpc.stream_unary_rpc_method_handler(answer)
