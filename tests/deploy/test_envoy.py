"""Envoy with `deploy/envoy.yaml` in front of a gateway with a scripted worker: JSON, gRPC-Web and plain gRPC."""

import http.client
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pomona.v1 import generation_pb2, generation_pb2_grpc, server_pb2, server_pb2_grpc

from tests.gateway.statuses import failure_of
from tests.support.gateway_pair import ENVOY, ROOT, Replica, descriptors, envoy, gateway_pair
from tests.support.kill_rounds import MODEL
from tests.support.scripted import GENERATE, STREAM_GENERATE

pytestmark = pytest.mark.skipif(ENVOY is None, reason="there is no Envoy for this machine")

LIMIT_S = 20.0
BEGUN = {"metadata": {"x-pomona-begun": "1"}}
ANSWER = generation_pb2.GenerateResponse(sequences=[generation_pb2.Sequence(text="Good day.")])
FIRST = generation_pb2.StreamGenerateResponse(started=generation_pb2.GenerationStarted(prompt_tokens=3))
METHODS: dict[str, Any] = {
    GENERATE: [{"read": 1}, BEGUN, {"send": ANSWER.SerializeToString().hex()}],
    STREAM_GENERATE: [{"read": 1}, BEGUN, {"send": FIRST.SerializeToString().hex(), "count": 2}],
}


@dataclass(frozen=True)
class Proxied:
    address: str
    gateway: Replica

    def post(self, path: str, body: bytes, kind: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of a POST over HTTP/1.1."""
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        try:
            connection.request("POST", path, body, {"content-type": kind})
            answer = connection.getresponse()
            return answer.status, answer.headers["content-type"] or "", answer.read()
        finally:
            connection.close()

    def post_json(self, method: str, request: dict[str, Any]) -> tuple[int, bytes]:
        status, _, body = self.post(f"/pomona.v1.{method}", json.dumps(request).encode(), "application/json")
        return status, body


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[Proxied]:
    """One gateway of two is there: the other is found out by its health."""
    with gateway_pair(tmp_path, METHODS, {}) as pair:
        there, missing = pair.replicas
        there.start()
        await there.until_listening()
        with envoy(tmp_path, there.port, missing.port) as address:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = server_pb2_grpc.ServerServiceStub(channel)
                await stub.GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=LIMIT_S, wait_for_ready=True)
            yield Proxied(address, there)


async def test_json_grpc_web_and_grpc_reach_the_gateway(proxied: Proxied) -> None:
    status, body = proxied.post_json("GenerationService/Generate", {"model": MODEL, "spec": {"prompt": "x"}})
    assert (status, json.loads(body)) == (200, {"sequences": [{"text": "Good day."}]})

    status, body = proxied.post_json("GenerationService/StreamGenerate", {"model": MODEL})
    assert status == 200
    assert [json.loads(line) for line in body.splitlines()] == [{"started": {"promptTokens": 3}}] * 2

    status, body = proxied.post_json("GenerationService/Generate", {"model": "nobody"})
    told = json.loads(body)
    assert (status, told["code"], told["details"][0]["reason"]) == (404, 5, "MODEL_NOT_FOUND")

    message = generation_pb2.StreamGenerateRequest(model=MODEL).SerializeToString()
    frame = b"\0" + len(message).to_bytes(4, "big") + message
    status, kind, body = proxied.post(
        "/pomona.v1.GenerationService/StreamGenerate", frame, "application/grpc-web+proto"
    )
    sent = FIRST.SerializeToString()
    assert (status, kind) == (200, "application/grpc-web+proto")
    assert body.count(b"\0" + len(sent).to_bytes(4, "big") + sent) == 2
    assert b"grpc-status:0" in body

    async with grpc.aio.insecure_channel(proxied.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.StreamGenerateRequest(model=MODEL)
        assert [event async for event in stub.StreamGenerate(request, timeout=LIMIT_S)] == [FIRST] * 2
        admin = server_pb2_grpc.AdminServiceStub(channel)
        hidden = await failure_of(admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S))
        assert hidden.code is grpc.StatusCode.UNIMPLEMENTED


def test_the_file_is_one_that_envoy_takes_with_the_descriptors_of_make(tmp_path: Path) -> None:
    made = tmp_path / "pomona.binpb"
    command = next(
        line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if "--descriptor_set_out=" in line
    )
    assert "google/rpc/status.proto google/rpc/error_details.proto" in command
    config = (ROOT / "deploy" / "envoy.yaml").read_text().replace("build/pomona.binpb", str(descriptors(tmp_path)))
    path = tmp_path / "envoy.yaml"
    path.write_text(config)
    assert ENVOY is not None
    result = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", str(path), "--log-level", "error"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (result.returncode, made.exists()) == (0, True), result.stderr


def test_every_service_for_clients_is_translated() -> None:
    config = (ROOT / "deploy" / "envoy.yaml").read_text()
    protos = "".join(path.read_text() for path in sorted((ROOT / "protos" / "pomona" / "v1").glob("*.proto")))
    services = {line.split()[1] for line in protos.splitlines() if line.startswith("service ")}
    translated = {name for name in services if f"- pomona.v1.{name}\n" in config}
    assert services - translated == {"WorkerService", "AdminService"}
