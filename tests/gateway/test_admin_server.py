"""The socket of whoever runs the server."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pomona.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from gateway.address import ListenError
from gateway.server import Gateway
from gateway.settings import load_settings
from gateway.token_file import change_tokens
from tests.gateway.statuses import failure_of
from tests.gateway.test_server import running, settings_for
from tests.support.scripted import fake_worker_command, write_script

LIMIT_S = 10.0


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    write_script(tmp_path)
    tokens = tmp_path / "tokens.json"
    change_tokens(tokens, lambda _: ())
    address = f"unix:{tmp_path / 'admin.sock'}"
    settings = settings_for(tmp_path, admin_listen=address, security={"tokens": str(tokens)})
    async with running(settings) as server:
        refusal = await failure_of(server.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S))
        assert refusal.reason == "CREDENTIALS_MISSING"
        options = (("grpc.default_authority", "localhost"),)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            yield channel
    assert not (tmp_path / "admin.sock").exists()


async def test_only_its_owner_can_connect(admin: grpc.aio.Channel, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600


async def test_the_owner_needs_no_token(admin: grpc.aio.Channel) -> None:
    stub: Any = server_pb2_grpc.AdminServiceStub(admin)  # pyright: ignore[reportArgumentType]
    assert not (await stub.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S)).requests
    models: Any = model_pb2_grpc.ModelServiceStub(admin)
    listed = await models.ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S)
    assert [one.model for one in listed.models] == ["model-a"]
    await stub.SetLogLevel(server_pb2.SetLogLevelRequest(level="error"), timeout=LIMIT_S)
    health: Any = health_pb2_grpc.HealthStub(admin)
    answer = await health.Check(health_pb2.HealthCheckRequest(service="model-a"), timeout=LIMIT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_channelz_tells_of_the_servers_and_their_sockets(admin: grpc.aio.Channel) -> None:
    stub: Any = channelz_pb2_grpc.ChannelzStub(admin)  # pyright: ignore[reportArgumentType]
    servers = (await stub.GetServers(channelz_pb2.GetServersRequest(start_server_id=0), timeout=LIMIT_S)).server
    listening = [socket for server in servers for socket in server.listen_socket]
    assert len(servers) >= 2
    assert listening
    sockets = [
        socket
        for server in servers
        for socket in (
            await stub.GetServerSockets(
                channelz_pb2.GetServerSocketsRequest(server_id=server.ref.server_id, start_socket_id=0), timeout=LIMIT_S
            )
        ).socket_ref
    ]
    assert sockets


async def test_requests_to_models_do_not_go_over_it(admin: grpc.aio.Channel) -> None:
    stub: Any = generation_pb2_grpc.GenerationServiceStub(admin)
    failure = await failure_of(stub.Generate(generation_pb2.GenerateRequest(model="model-a"), timeout=LIMIT_S))
    assert failure.code is grpc.StatusCode.UNIMPLEMENTED


async def test_another_address_than_a_socket_is_refused() -> None:
    settings = load_settings(None, {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"})
    with pytest.raises(ListenError, match="admin_listen"):
        Gateway(settings, fake_worker_command().argv)
