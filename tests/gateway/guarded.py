"""The whole gateway with tokens, over scripted workers, and every RPC that it answers."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2

from gateway.server import Gateway
from gateway.settings import Settings, load_settings
from tests.gateway.statuses import Seen, failure_of
from tests.support.scripted import fake_worker_command, write_script

LIMIT_S = 20.0
_FILES: tuple[Any, ...] = (generation_pb2, embedding_pb2, transcription_pb2, model_pb2, server_pb2)
_OTHERS: tuple[Any, ...] = (health_pb2, reflection_pb2)
SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service for file in (*_FILES, *_OTHERS) for service in file.DESCRIPTOR.services_by_name.values()
)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}
EXEMPT = "/grpc.health.v1.Health/Check"
DRAIN = "/pomona.v1.AdminService/DrainServer"


class Guarded:
    """A server with tokens, and calls to it.

    Attributes:
        path: the file of tokens.
        gateway: the server.
        channel: to it.
        address: where it listens.
    """

    def __init__(self, path: Path, gateway: Gateway, channel: grpc.aio.Channel, address: str) -> None:
        self.path = path
        self.gateway = gateway
        self.channel = channel
        self.address = address

    def call(self, method: str, message: Any = None, metadata: Any = (), limit_s: float = LIMIT_S) -> Any:
        """Call an RPC of any kind with one message, and return the call, which streams its answers."""
        described = METHODS[method]
        told = GetMessageClass(described.input_type)() if message is None else message

        async def one() -> AsyncIterator[bytes]:
            yield told.SerializeToString()

        answer_class = GetMessageClass(described.output_type)
        stub = self.channel.stream_stream(method, response_deserializer=answer_class.FromString)
        return stub(one(), metadata=metadata, timeout=limit_s)

    async def refusal(self, method: str, message: Any = None, metadata: Any = ()) -> Seen:
        """Return how a call fails."""
        return await failure_of(self.call(method, message, metadata))

    async def answer(self, method: str, message: Any = None, metadata: Any = ()) -> Any:
        """Return the first answer of a call, which is ended then."""
        call = self.call(method, message, metadata)
        try:
            return await anext(aiter(call))
        finally:
            call.cancel()


def settings_for(folder: Path, **changed: Any) -> Settings:
    """Return settings with two models, one of them under an alias too, and a file of tokens."""
    write_script(folder, **changed.pop("script", {}))
    checkpoint = str(folder / "script.json")
    models = [
        {"name": "model-a", "checkpoint": checkpoint, "aliases": ["alias-a"]},
        {"name": "secret/model-b", "checkpoint": checkpoint, "aliases": ["alias-b"]},
    ]
    told: dict[str, Any] = {"listen": "127.0.0.1:0", "models": models, "hub_models": False, **changed}
    told["security"] = {"tokens": str(folder / "tokens.json"), **told.get("security", {})}
    return load_settings(None, told)


@contextlib.asynccontextmanager
async def guarded(settings: Settings) -> AsyncGenerator[Guarded]:
    """Serve; the file of tokens has to be there."""
    gateway = Gateway(settings, fake_worker_command().argv)
    path = settings.security.tokens
    assert path is not None
    try:
        address = await gateway.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Guarded(path, gateway, channel, address)
    finally:
        await gateway.stop()


async def built_methods(server: Guarded, metadata: Any) -> list[str]:
    """Return the RPCs that the server has: those that do not answer UNIMPLEMENTED to a caller who may do all."""
    built = [DRAIN]  # which is not tried out
    for method in sorted(METHODS.keys() - {DRAIN}):
        call = server.call(method, metadata=metadata, limit_s=2.0)
        try:
            await anext(aiter(call), None)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                continue
        finally:
            call.cancel()
        built.append(method)
    return built
