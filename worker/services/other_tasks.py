"""Answers the methods of services for models of other kinds: with a reason, not with gRPC's bare UNIMPLEMENTED."""

from collections.abc import Collection

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, transcription_pb2

from worker.errors import TaskNotSupported
from worker.services.edge import Call, Edge

# Each of these modules has one service.
_SERVICES: tuple[ServiceDescriptor, ...] = (
    *(
        service
        for module in (generation_pb2, embedding_pb2, transcription_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    ),
    model_pb2.DESCRIPTOR.services_by_name["AdapterService"],
)


def refusals(edge: Edge, answered: Collection[str], tasks: str) -> list[grpc.GenericRpcHandler]:
    """Return handlers of every service that callers may ask for and this model does not answer.

    Args:
        edge: makes the handlers.
        answered: full names of the services that it answers.
        tasks: what it does, in words.
    """

    async def refuse_unary(_body: bytes, _call: Call) -> Message:
        raise TaskNotSupported(tasks)

    async def refuse_stream(_body: bytes, _call: Call) -> None:
        raise TaskNotSupported(tasks)

    async def refuse_duplex(_call: Call) -> None:
        raise TaskNotSupported(tasks)

    def handler(method: MethodDescriptor) -> "grpc.RpcMethodHandler[bytes, bytes]":
        if method.client_streaming:
            return edge.duplex(refuse_duplex)
        return edge.stream(refuse_stream) if method.server_streaming else edge.unary(refuse_unary)

    return [
        grpc.method_handlers_generic_handler(
            service.full_name, {method.name: handler(method) for method in service.methods}
        )
        for service in _SERVICES
        if service.full_name not in answered
    ]
