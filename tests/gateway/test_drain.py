"""How a server takes its leave of clients, over real sockets, with a scripted worker."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pomona.v1 import generation_pb2, model_pb2, server_pb2

from gateway.serving import ServerBroken, serve
from tests.gateway.statuses import failure_of
from tests.gateway.test_server import FIRST, HELD, LIMIT_S, Running, running, settings_for, told
from tests.support.scripted import STREAM_GENERATE, write_script
from tests.support.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LONG_NOTICE = {"drain_notice_s": 600.0, "drain_grace_s": 600.0, "short_grace_s": 0.1}


async def watched(server: Running) -> Any:
    """Return a watch of the server's health that has had its first answer."""
    watch = aiter(server.health.Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(watch)).status == SERVING
    return watch


async def test_where_health_is_watched_requests_are_taken_during_the_notice(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    async with running(settings_for(tmp_path, limits=LONG_NOTICE)) as server:
        call = server.stream()
        await anext(aiter(call))
        watch, hurry = await watched(server), asyncio.Event()
        leaving = asyncio.create_task(server.gateway.drain_or_hurry(hurry))
        assert (await anext(watch)).status == NOT_SERVING
        await eventually(lambda: told(tmp_path) == [1200.0], LIMIT_S)  # live streams hear it before anything ends
        during = server.generation.StreamGenerate(generation_pb2.StreamGenerateRequest(model="model-a"))
        assert await anext(aiter(during)) == FIRST
        hurry.set()
        await asyncio.wait_for(leaving, LIMIT_S)
        assert {(await failure_of(one)).reason for one in (call, during)} == {"SERVER_DRAINING"}


async def test_where_nobody_looks_at_health_there_is_no_notice(tmp_path: Path) -> None:
    write_script(tmp_path)
    async with running(settings_for(tmp_path, limits=LONG_NOTICE)) as server:
        await asyncio.wait_for(server.gateway.drain_or_hurry(asyncio.Event()), LIMIT_S)


async def test_clients_are_led_elsewhere_while_their_streams_run_on(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    limits = {"drain_notice_s": 0.0, "drain_grace_s": 600.0, "short_grace_s": 0.1}
    async with running(settings_for(tmp_path, limits=limits)) as server:
        call = server.stream()
        events = aiter(call)
        await anext(events)
        states = grpc.ChannelConnectivity
        assert server.channel.get_state() is states.READY
        hurry = asyncio.Event()
        leaving = asyncio.create_task(server.gateway.drain_or_hurry(hurry))
        # GOAWAY: the connection takes no more streams, and nobody listens for another.
        await asyncio.wait_for(server.channel.wait_for_state_change(states.READY), LIMIT_S)
        late = server.generation.StreamGenerate(generation_pb2.StreamGenerateRequest(model="model-a"))
        assert (await failure_of(late)).code is grpc.StatusCode.UNAVAILABLE
        assert await anext(events) == FIRST
        hurry.set()
        await asyncio.wait_for(leaving, LIMIT_S)
        assert (await failure_of(call)).reason == "SERVER_DRAINING"


async def test_watches_end_with_a_status_that_says_why(tmp_path: Path) -> None:
    write_script(tmp_path)
    limits = {"drain_notice_s": 0.0}
    async with running(settings_for(tmp_path, limits=limits)) as server:
        lines = server.admin.StreamLogs(server_pb2.StreamLogsRequest(follow=True))
        models = server.models.WatchModels(model_pb2.WatchModelsRequest())
        watch = server.health.Watch(health_pb2.HealthCheckRequest())
        for call in (lines, models, watch):
            await anext(aiter(call))
        gone = server.models.WatchModels(model_pb2.WatchModelsRequest())
        await anext(aiter(gone))
        gone.cancel()
        await server.gateway.drain_or_hurry(asyncio.Event())
        await server.gateway.stop()
        for call in (lines, models, watch):
            failure = await asyncio.wait_for(failure_of(call), LIMIT_S)
            assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager that feeds on datagrams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "n"))
        made.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        yield made


async def heard(manager: socket.socket, line: str) -> None:
    lines: list[str] = []

    def is_there() -> bool:
        try:
            lines.extend(manager.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return False
        return line in lines

    await eventually(is_there, LIMIT_S)


async def test_the_service_manager_is_told_and_beaten_for_until_the_end(tmp_path: Path, manager: socket.socket) -> None:
    write_script(tmp_path)
    addresses: list[str] = []
    serving = asyncio.create_task(serve(settings_for(tmp_path), addresses.append))
    await heard(manager, "READY=1")
    assert addresses
    await heard(manager, "WATCHDOG=1")
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = aiter(stub.Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(watch)).status == SERVING
        os.kill(os.getpid(), signal.SIGHUP)
        await heard(manager, "RELOADING=1")
        await heard(manager, "READY=1")
        os.kill(os.getpid(), signal.SIGTERM)
        await heard(manager, "STOPPING=1")
        await heard(manager, "WATCHDOG=1")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, LIMIT_S)


async def test_a_server_whose_writer_ended_feeds_no_watchdog_and_ends(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path)

    async def breaks(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("gateway.writer.Writer._write", breaks)
    serving = asyncio.create_task(serve(settings_for(tmp_path), lambda _: None))
    with pytest.raises(ServerBroken):
        await asyncio.wait_for(serving, LIMIT_S)
