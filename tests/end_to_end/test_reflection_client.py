"""A client that knows an address and a name, and learns everything else from reflection."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.served import Served, served
from tests.support.tiny_models import write_llama

VERSIONS = ("v1", "v1alpha")
SERVICE = "pomona.v1.GenerationService"
REQUEST = {
    "model": "tiny",
    "spec": {
        "chat": {"messages": [{"role": "ROLE_USER", "text": "hello"}]},
        "sampling": {"temperature": 0},
        "stopping": {"maxTokens": 6},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    checkpoint = write_llama(tmp_path_factory.mktemp("tiny") / "checkpoint")
    with served("--model", f"tiny={checkpoint}") as running:
        yield running


class Reflection:
    """Asks one version of the reflection service; both have the same messages."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        self._ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )

    def ask(self, **request: Any) -> Any:
        (response,) = self._ask(iter([reflection_pb2.ServerReflectionRequest(**request)]), timeout=10)
        assert not response.HasField("error_response"), response.error_response
        return response

    def services(self) -> list[str]:
        return [service.name for service in self.ask(list_services="").list_services_response.service]

    def pool(self, symbol: str) -> descriptor_pool.DescriptorPool:
        """Return a pool of its own with the file of `symbol` and all that it imports."""
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        self._take(self.ask(file_containing_symbol=symbol), files)
        pool = descriptor_pool.DescriptorPool()
        added: set[str] = set()
        for name in files:
            _add(name, files, pool, added)
        return pool

    def _take(self, response: Any, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
        for raw in response.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            files[file.name] = file
        for name in {name for file in list(files.values()) for name in file.dependency} - set(files):
            self._take(self.ask(file_by_filename=name), files)


def _add(
    name: str,
    files: dict[str, descriptor_pb2.FileDescriptorProto],
    pool: descriptor_pool.DescriptorPool,
    added: set[str],
) -> None:
    if name in added:
        return
    added.add(name)
    for dependency in files[name].dependency:
        _add(dependency, files, pool, added)
    pool.Add(files[name])


@pytest.mark.parametrize("version", VERSIONS)
def test_services_are_listed(server: Served, version: str) -> None:
    with grpc.insecure_channel(server.address) as channel:
        listed = Reflection(channel, version).services()
    assert {SERVICE, "pomona.v1.ModelService", "pomona.v1.AdminService", "grpc.health.v1.Health"} <= set(listed)
    assert {f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS} <= set(listed)
    assert "pomona.v1.WorkerService" not in listed


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_is_streamed_by_a_client_that_has_reflection_alone(server: Served, version: str) -> None:
    with grpc.insecure_channel(server.address) as channel:
        pool = Reflection(channel, version).pool(SERVICE)
        method = pool.FindServiceByName(SERVICE).methods_by_name["StreamGenerate"]
        request_type, response_type = (
            message_factory.GetMessageClass(each) for each in (method.input_type, method.output_type)
        )
        call = channel.unary_stream(
            f"/{SERVICE}/{method.name}",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        request = json_format.ParseDict(REQUEST, request_type())
        events = [json_format.MessageToDict(event) for event in call(request, timeout=40)]
    assert method.server_streaming
    assert "started" in events[0]
    assert any("delta" in event for event in events)
    assert events[-1]["completed"]["usage"]["completionTokens"] == 6
