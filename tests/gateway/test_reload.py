"""SIGHUP on a whole gateway: settings and models are read again, and nothing that runs ends."""

import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
from pomona.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from gateway.hang_ups import HangUps
from gateway.server import Gateway
from gateway.settings import load_settings
from tests.gateway.statuses import failure_of
from tests.support.scripted import STREAM_GENERATE, fake_worker_command, write_script
from tests.support.waiting import eventually

LIMIT_S = 20.0
FIRST = generation_pb2.StreamGenerateResponse(started=generation_pb2.GenerationStarted(prompt_tokens=3))
HELD = [
    {"read": 1},
    {"metadata": {"x-pomona-begun": "1"}},
    {"send": FIRST.SerializeToString().hex(), "count": 2},
    {"hang": True},
]


class Served:
    """A gateway over a file of settings, with the signals of a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pomona.toml"
        write_script(folder, methods={STREAM_GENERATE: HELD})
        self.write("a")
        self.reload = partial(load_settings, self.file, {"listen": "127.0.0.1:0", "hub_models": False})
        self.gateway = Gateway(self.reload(), fake_worker_command().argv, self.reload)
        self.hang_ups = HangUps(self.gateway.reload, lambda: None, lambda: False)

    def write(self, *names: str, more: str = "", model: str = "") -> None:
        """Write settings with these models."""
        script = self.folder / "script.json"
        models = (f'[[models]]\nname = "{name}"\ncheckpoint = "{script}"\n{model}\n' for name in names)
        self.file.write_text(f"{''.join(models)}{more}\n")

    def hang_up(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def connect(self, channel: grpc.aio.Channel) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(channel)
        self.models = model_pb2_grpc.ModelServiceStub(channel)
        self.admin = server_pb2_grpc.AdminServiceStub(channel)

    def stream(self, request_id: str) -> Any:
        request = generation_pb2.StreamGenerateRequest(model="a", request_id=request_id)
        return self.generation.StreamGenerate(request, timeout=LIMIT_S)

    async def changes(self) -> AsyncIterator[Any]:
        """Return the changes of models after those that are there."""
        events = aiter(self.models.WatchModels(model_pb2.WatchModelsRequest(), timeout=LIMIT_S))
        while not (await anext(events)).HasField("snapshot_complete"):
            pass
        return events

    async def logged(self, event: str) -> dict[str, str]:
        """Return the fields of the next line that says this."""
        request = server_pb2.StreamLogsRequest(past_lines=100, follow=True)
        async for line in self.admin.StreamLogs(request, timeout=LIMIT_S):
            if line.message == event:
                return dict(line.fields)
        raise AssertionError(event)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncGenerator[Served]:
    server = Served(folder)
    try:
        address = await server.gateway.start()
        server.hang_ups.begin()
        server.hang_ups.ready()
        async with grpc.aio.insecure_channel(address) as channel:
            server.connect(channel)
            yield server
    finally:
        server.hang_ups.end()
        await server.gateway.stop()


async def test_a_reload_brings_models_and_limits_and_drops_no_stream(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        events = aiter(server.stream("r"))
        assert await anext(events) == FIRST
        changes = await server.changes()
        server.write("a", "b", more="[limits]\nmax_requests_per_model = 1\nmax_waiting = 0")
        server.hang_up()
        while (await anext(changes)).updated.model != "b":
            pass
        await eventually(lambda: server.gateway.settings.limits.max_waiting == 0, LIMIT_S)
        assert (await failure_of(server.stream("s"))).reason == "QUEUE_FULL"
        assert await anext(events) == FIRST


async def test_settings_that_are_wrong_change_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        before = server.gateway.settings
        events = aiter(server.stream("r"))
        assert await anext(events) == FIRST
        server.write("a", "b", more="[limits]\nmax_requests = -1")
        server.hang_up()
        problem = (await server.logged("settings not read again"))["problem"]
        assert "limits.max_requests" in problem
        assert server.gateway.settings is before
        names = [one.model for one in (await server.models.ListModels(model_pb2.ListModelsRequest())).models]
        assert names == ["a"]
        assert await anext(events) == FIRST


async def test_what_needs_a_start_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.write("a", more="[grpc]\nkeepalive_s = 70")
        server.hang_up()
        told = await server.logged("settings hold only once the server starts again")
        assert "grpc.keepalive_s" in told["settings"]


async def test_a_model_that_is_gone_is_told_and_refused_once_it_is_unloaded(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.write("a", "b")
        server.hang_up()
        await server.logged("settings read again")
        changes = await server.changes()
        server.write("a")
        server.hang_up()
        assert (await anext(changes)).removed_model == "b"
        failure = await failure_of(server.models.GetModel(model_pb2.GetModelRequest(model="b")))
        assert failure.reason == "MODEL_NOT_FOUND"


async def test_a_model_that_is_to_be_loaded_early_is(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.write("a", model="preload = true")
        changes = await server.changes()
        server.hang_up()
        while (await anext(changes)).updated.state != model_pb2.MODEL_STATE_ACTIVE:
            pass


async def test_a_stream_of_changes_hears_the_last_of_many(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        changes = await server.changes()
        for number in range(5):
            server.write("a", model=f"max_requests = {number + 1}")
            await server.gateway.reload()
        server.write("a", "z")
        await server.gateway.reload()
        events = []
        while not events or events[-1] != "z":
            events.append((await anext(changes)).updated.model)
        assert events.count("a") <= 6
