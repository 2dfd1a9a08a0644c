"""The whole gateway over real sockets, with real processes as workers that follow a script."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pomona.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from gateway.address import ListenError
from gateway.server import Gateway
from gateway.serving import serve
from gateway.settings import Settings, SettingsError, load_settings
from tests.gateway.statuses import failure_of
from tests.support.scripted import GENERATE, STREAM_GENERATE, events_in, fake_worker_command, is_alive, write_script
from tests.support.waiting import eventually

LIMIT_S = 20.0
FIRST = generation_pb2.StreamGenerateResponse(started=generation_pb2.GenerationStarted(prompt_tokens=3))
HELD = [
    {"read": 1},
    {"metadata": {"x-pomona-begun": "1"}},
    {"send": FIRST.SerializeToString().hex(), "count": 2},
    {"hang": True},
]
SHORT = [
    {"read": 1},
    {"send": FIRST.SerializeToString().hex(), "count": 1},
    {"wait_s": 0.3},
    {"send": FIRST.SerializeToString().hex(), "count": 1},
]


def settings_for(folder: Path, listen: str = "127.0.0.1:0", **changed: Any) -> Settings:
    models = [{"name": "model-a", "checkpoint": str(folder / "script.json"), "aliases": ["alias-a"]}]
    return load_settings(None, {"listen": listen, "models": models, **changed})


@dataclass
class Running:
    gateway: Gateway
    address: str
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.admin = server_pb2_grpc.AdminServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    def stream(self, **options: Any) -> Any:
        request = generation_pb2.StreamGenerateRequest(model="alias-a", request_id="r")
        return self.generation.StreamGenerate(request, timeout=LIMIT_S, **options)


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncGenerator[Running]:
    gateway = Gateway(settings, fake_worker_command().argv)
    try:
        address = await gateway.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Running(gateway, address, channel)
    finally:
        await gateway.stop()


def told(folder: Path) -> list[float]:
    """Return after how many seconds its requests will be ended, each time that the worker was told."""
    return [noted["remaining_s"] for noted in events_in(folder, "ending")]


async def test_a_request_loads_its_model_and_streams(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: SHORT})
    async with running(settings_for(tmp_path)) as server:
        assert [event async for event in server.stream()] == [FIRST, FIRST]
        (model,) = (await server.models.ListModels(model_pb2.ListModelsRequest(loaded_only=True))).models
        assert (model.model, model.state) == ("model-a", model_pb2.MODEL_STATE_ACTIVE)
        pid = model.workers[0].pid
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_a_model_is_loaded_and_unloaded_by_hand(tmp_path: Path) -> None:
    write_script(tmp_path)
    async with running(settings_for(tmp_path)) as server:
        loaded = (await server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)).model
        assert loaded.state == model_pb2.MODEL_STATE_ACTIVE
        answer = await server.models.UnloadModel(model_pb2.UnloadModelRequest(model="model-a"), timeout=LIMIT_S)
        assert answer.model.state == model_pb2.MODEL_STATE_UNLOADED
        assert not is_alive(loaded.workers[0].pid)


async def test_a_load_whose_caller_went_away_goes_on(tmp_path: Path) -> None:
    write_script(tmp_path, reports=3, pause_s=0.1)
    async with running(settings_for(tmp_path)) as server:
        call = server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)
        await eventually(lambda: bool(events_in(tmp_path)), LIMIT_S)
        call.cancel()
        joined = await server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)
        assert joined.model.state == model_pb2.MODEL_STATE_ACTIVE
        assert joined.model.workers[0].restart_count == 0


async def test_a_worker_killed_mid_stream_ends_the_stream_and_is_replaced(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    async with running(settings_for(tmp_path)) as server:
        call = server.stream()
        events = aiter(call)
        assert [await anext(events) for _ in range(2)] == [FIRST, FIRST]
        worker = (await server.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model.workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        failure = await asyncio.wait_for(failure_of(call), LIMIT_S / 2)  # long before the stream's own deadline
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_DIED")
        assert failure.metadata == {"model": "model-a", "signal": "SIGKILL", "events_sent": "2"}
        again = server.stream()
        assert await anext(aiter(again)) == FIRST
        again.cancel()


async def test_a_worker_killed_before_it_begins_is_not_seen_by_the_caller(tmp_path: Path) -> None:
    write_script(tmp_path, methods={GENERATE: [{"read": 1}, {"hang": True}]})
    async with running(settings_for(tmp_path)) as server:
        call = server.generation.Generate(generation_pb2.GenerateRequest(model="model-a"), timeout=LIMIT_S)
        await eventually(lambda: bool(events_in(tmp_path, "began")), LIMIT_S)
        write_script(tmp_path, methods={GENERATE: [{"read": 1}, {"send": "", "count": 1}]})
        worker = (await server.models.GetModel(model_pb2.GetModelRequest(model="model-a"))).model.workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        assert await call == generation_pb2.GenerateResponse()


async def test_requests_in_flight_are_listed_and_cancelled(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    async with running(settings_for(tmp_path)) as server:
        call = server.stream()
        await anext(aiter(call))
        (listed,) = (await server.admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S)).requests
        assert (listed.request_id, listed.model) == ("r", "model-a")
        await server.admin.CancelRequest(server_pb2.CancelRequestRequest(request_id="r"), timeout=LIMIT_S)
        failure = await failure_of(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR")


async def test_a_drain_lets_running_streams_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: SHORT})
    async with running(settings_for(tmp_path)) as server:
        call = server.stream()
        events = aiter(call)
        assert await anext(events) == FIRST
        draining = asyncio.create_task(server.gateway.drain(LIMIT_S))
        await eventually(lambda: server.gateway.core.admission._is_closed)
        health = await server.health.Check(health_pb2.HealthCheckRequest(service="model-a"), timeout=LIMIT_S)
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        request = generation_pb2.StreamGenerateRequest(model="model-a")
        failure = await failure_of(server.generation.StreamGenerate(request, timeout=LIMIT_S))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
        assert await anext(events) == FIRST
        assert await call.code() is grpc.StatusCode.OK
        drained = await draining
        assert (drained.completed, drained.aborted) == (1, 0)


async def test_what_does_not_finish_within_the_grace_is_ended(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    async with running(settings_for(tmp_path)) as server:
        call = server.stream()
        await anext(aiter(call))
        drained = await server.gateway.drain(0.1)
        assert (drained.completed, drained.aborted) == (0, 1)
        failure = await failure_of(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")


async def test_a_second_signal_shortens_the_grace(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: HELD})
    limits = {"drain_grace_s": 600.0, "short_grace_s": 0.1}
    async with running(settings_for(tmp_path, limits=limits)) as server:
        call = server.stream()
        await anext(aiter(call))
        hurry = asyncio.Event()
        stopping = asyncio.create_task(server.gateway.drain_or_hurry(hurry))
        await eventually(lambda: server.gateway.core.admission._is_closed)
        await eventually(lambda: told(tmp_path) == [600.0], LIMIT_S)
        assert not call.done()
        hurry.set()
        await asyncio.wait_for(stopping, LIMIT_S)
        assert (await failure_of(call)).reason == "SERVER_DRAINING"
        await eventually(lambda: told(tmp_path) == [600.0, 0.1], LIMIT_S)


async def test_a_message_over_the_limit_is_refused_by_the_library(tmp_path: Path) -> None:
    write_script(tmp_path)
    async with running(settings_for(tmp_path, grpc={"max_request_bytes": 2048})) as server:
        spec = generation_pb2.GenerationSpec(prompt="x" * 4096)
        request = generation_pb2.GenerateRequest(model="model-a", spec=spec)
        failure = await failure_of(server.generation.Generate(request, timeout=LIMIT_S))
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    write_script(tmp_path, methods={STREAM_GENERATE: SHORT})
    path = tmp_path / "p.sock"
    async with running(settings_for(tmp_path, f"unix:{path}")) as server:
        assert server.address == f"unix:{path}"
        assert len([event async for event in server.stream()]) == 2
    assert not path.exists()


async def test_a_second_server_at_the_same_address_is_refused_and_the_first_lives(tmp_path: Path) -> None:
    write_script(tmp_path)
    async with running(settings_for(tmp_path)) as server:
        second = Gateway(settings_for(tmp_path, server.address))
        with pytest.raises(ListenError):
            await second.start()
        await second.stop()
        answer = await server.health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server(tmp_path: Path, number: signal.Signals) -> None:
    addresses: list[str] = []
    settings = load_settings(None, {"listen": "127.0.0.1:0", "limits": {"drain_notice_s": 0.0}})
    serving = asyncio.create_task(serve(settings, addresses.append))
    await eventually(lambda: len(addresses) == 1, LIMIT_S)
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        os.kill(os.getpid(), number)
        await asyncio.wait_for(serving, LIMIT_S)


async def test_a_standard_error_that_no_one_reads_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    monkeypatch.setattr("gateway.journal.standard_error", lambda: writer)
    write_script(tmp_path, methods={STREAM_GENERATE: SHORT})
    async with running(settings_for(tmp_path)) as server:
        assert len([event async for event in server.stream()]) == 2
    os.close(reader)
    await eventually(lambda: not any(thread.name == "log-output" for thread in threading.enumerate()), LIMIT_S)
    os.close(writer)


async def test_no_place_for_the_workers_sockets_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.sockets.tempfile.mkdtemp", full)
    with pytest.raises(ListenError, match=r"^/tmp: no folder .* No space left on device$"):
        await serve(load_settings(None, {"listen": "127.0.0.1:0"}), lambda _: None)


async def test_an_address_that_others_reach_is_refused() -> None:
    with pytest.raises(ListenError, match="other machines"):
        await serve(load_settings(None, {"listen": "0.0.0.0:0"}), lambda _: None)


async def test_two_models_of_one_name_are_refused() -> None:
    models = [{"name": "a", "checkpoint": "/a"}, {"name": "b", "checkpoint": "/b", "aliases": ["a"]}]
    with pytest.raises(SettingsError, match="'a'"):
        await serve(load_settings(None, {"listen": "127.0.0.1:0", "models": models}), lambda _: None)
