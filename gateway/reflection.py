"""Server reflection in both its versions, so that a client without the `.proto` files can call what is built.

The library knows `v1alpha` only. `v1` is the same protocol under another package name: its descriptor is made from
the older one's, and one servicer answers for both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2
from structlog.typing import FilteringBoundLogger

from gateway.services.registration import ServicersEdge, read_message

OLD_PACKAGE = "grpc.reflection.v1alpha"
NEW_PACKAGE = "grpc.reflection.v1"
METHOD = "ServerReflectionInfo"
SERVICE_NAMES = (f"{OLD_PACKAGE}.ServerReflection", f"{NEW_PACKAGE}.ServerReflection")


def add_reflection(server: grpc.aio.Server, services: Iterable[str], log: FilteringBoundLogger) -> None:
    """Have `server` describe `services` (full names), and reflection itself; `log` takes what should not happen."""
    names = (*services, *SERVICE_NAMES)
    servicer: Any = reflection.aio.ReflectionServicer(names, pool=_Symbols(_pool(names)))

    async def answer(bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async with ServicersEdge(context, log):
            async for response in servicer.ServerReflectionInfo(_read(bodies), context):
                yield response

    handler: grpc.RpcMethodHandler[bytes, Any] = grpc.stream_stream_rpc_method_handler(
        answer, response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString
    )
    handlers = tuple(grpc.method_handlers_generic_handler(name, {METHOD: handler}) for name in SERVICE_NAMES)
    server.add_generic_rpc_handlers(handlers)


async def _read(bodies: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for body in bodies:
        yield read_message(reflection_pb2.ServerReflectionRequest, body)


class _Symbols:
    """A pool that finds the file of every symbol that a client may name; the library's own knows no methods."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the pool's name
        """Return the file that declares `symbol`.

        Raises:
            KeyError: none does.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            if method not in self._pool.FindServiceByName(service).methods_by_name:
                raise
            return self._pool.FindFileContainingSymbol(service)


def _pool(services: Iterable[str]) -> DescriptorPool:
    """Return a pool of its own with the files of the services: the process's pool stays as it is."""
    pool = DescriptorPool()
    pool.Add(_new_version())
    added: set[str] = set()
    for name in services:
        if not name.startswith(f"{NEW_PACKAGE}."):
            _add(pool, Default().FindFileContainingSymbol(name), added)
    return pool


def _add(pool: DescriptorPool, file: FileDescriptor, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(pool, dependency, added)
    pool.AddSerializedFile(file.serialized_pb)


def _new_version() -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of `v1`, made from that of `v1alpha` by renaming its package."""
    file = descriptor_pb2.FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = NEW_PACKAGE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    for service in file.service:
        for method in service.method:
            method.input_type = _renamed(method.input_type)
            method.output_type = _renamed(method.output_type)
    return file


def _renamed(type_name: str) -> str:
    return type_name.replace(f".{OLD_PACKAGE}.", f".{NEW_PACKAGE}.")
