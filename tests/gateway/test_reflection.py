"""A client without the `.proto` files finds what it needs."""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from pomona.v1 import generation_pb2, model_pb2

from gateway import health
from gateway.logs import LogRing, make_log
from gateway.reflection import NEW_PACKAGE, OLD_PACKAGE, SERVICE_NAMES, add_reflection
from gateway.services.registration import MAX_CONTROL_BYTES
from tests.gateway.statuses import seen

DESCRIPTORS: tuple[Any, ...] = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    model_pb2.DESCRIPTOR.services_by_name["ModelService"],
    health.SERVICE,
)
SERVICES = tuple(descriptor.full_name for descriptor in DESCRIPTORS)
VERSIONS = (OLD_PACKAGE, NEW_PACKAGE)


async def ask(folder: Path, package: str, *requests: Any) -> list[Any]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    add_reflection(server, SERVICES, make_log(LogRing(10), "info", "json", io.StringIO()))
    server.add_insecure_port(f"unix:{folder / 'r.sock'}")
    await server.start()

    async def sent() -> AsyncIterator[Any]:
        for request in requests:
            yield request

    async with grpc.aio.insecure_channel(f"unix:{folder / 'r.sock'}") as channel:
        call = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request_serializer=_bytes,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(sent(), timeout=10)
        try:
            return [answer async for answer in call]
        finally:
            await server.stop(None)


def _bytes(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def files_in(answer: Any) -> list[descriptor_pb2.FileDescriptorProto]:
    found = answer.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(one) for one in found]


@pytest.mark.parametrize("package", VERSIONS)
async def test_only_services_that_are_built_are_listed(tmp_path: Path, package: str) -> None:
    (answer,) = await ask(tmp_path, package, reflection_pb2.ServerReflectionRequest(list_services="*"))
    names = {service.name for service in answer.list_services_response.service}
    assert names == {*SERVICES, *SERVICE_NAMES}


@pytest.mark.parametrize("package", VERSIONS)
async def test_a_client_can_build_every_message_of_a_service(tmp_path: Path, package: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="pomona.v1.GenerationService")
    (answer,) = await ask(tmp_path, package, request)
    pool = DescriptorPool()
    waiting = files_in(answer)
    while waiting:
        known = [one for one in waiting if all(_has(pool, name) for name in one.dependency)]
        for file in known:
            pool.Add(file)
        waiting = [one for one in waiting if one not in known]
        assert known
    method = pool.FindServiceByName("pomona.v1.GenerationService").FindMethodByName("StreamGenerate")
    message: Any = GetMessageClass(method.input_type)(model="m")
    assert message.SerializeToString() == b"\x0a\x01m"
    assert method.server_streaming


def _has(pool: DescriptorPool, name: str) -> bool:
    try:
        pool.FindFileByName(name)
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("package", VERSIONS)
@pytest.mark.parametrize("described", VERSIONS)
async def test_each_version_describes_both(tmp_path: Path, package: str, described: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{described}.ServerReflection")
    (answer,) = await ask(tmp_path, package, request)
    (file,) = files_in(answer)
    assert file.package == described
    assert file.service[0].method[0].input_type == f".{described}.ServerReflectionRequest"


@pytest.mark.parametrize("package", VERSIONS)
async def test_what_is_not_there_is_an_error_in_the_stream(tmp_path: Path, package: str) -> None:
    requests = (
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="nobody.Knows"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="pomona/v1/generation.proto"),
    )
    missing, found = await ask(tmp_path, package, *requests)
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert "pomona/v1/generation.proto" in {file.name for file in files_in(found)}


SYMBOLS = (
    "pomona.v1.GenerationService.StreamGenerate",
    "pomona.v1.StreamGenerateRequest",
    "pomona.v1.StreamGenerateRequest.model",
    "grpc.reflection.v1.ServerReflectionRequest.message_request",
    "grpc.health.v1.HealthCheckResponse.ServingStatus",
    "grpc.health.v1.HealthCheckResponse.SERVING",
    "grpc.health.v1.Health.Check",
)


@pytest.mark.parametrize("symbol", SYMBOLS)
async def test_every_kind_of_symbol_is_found(tmp_path: Path, symbol: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    (answer,) = await ask(tmp_path, NEW_PACKAGE, request)
    packages = {file.package for file in files_in(answer)}
    assert any(symbol.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize(
    "symbol", ["pomona.v1.GenerationService.Nothing", "pomona.v1.StreamGenerateRequest.nothing", "nothing", ".", ""]
)
async def test_a_symbol_that_is_not_there_is_not_found(tmp_path: Path, symbol: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    (answer,) = await ask(tmp_path, NEW_PACKAGE, request)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("package", VERSIONS)
@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\x7f" + b"x" * MAX_CONTROL_BYTES])
async def test_bytes_that_are_no_request_are_malformed(tmp_path: Path, package: str, body: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(tmp_path, package, body)
    failure = seen(caught.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
