"""What callers chose outlives the server, whether it is stopped or killed."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from pomona.v1 import model_pb2, model_pb2_grpc

from gateway.server import Gateway
from gateway.settings import SettingsError, load_settings
from tests.support.kill_rounds import FAKE_GATEWAY, GREETING
from tests.support.scripted import fake_worker_command, write_script

LIMIT_S = 20.0


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    script = write_script(tmp_path)
    models = "".join(f'[[models]]\nname = "{name}"\ncheckpoint = "{script}"\n' for name in ("a", "b"))
    file = tmp_path / "pomona.toml"
    file.write_text(
        f'listen = "unix:{tmp_path}/g.sock"\nhub_models = false\nstate_folder = "{tmp_path}/kept"\n{models}'
    )
    return file


@contextlib.asynccontextmanager
async def killed(settings: Path) -> AsyncGenerator[Any]:
    """Run a server in a process of its own, which is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(FAKE_GATEWAY),
        str(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    address = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode().strip().removeprefix(GREETING)
    async with connected(address) as models:
        yield models
    process.kill()
    await asyncio.wait_for(process.wait(), LIMIT_S)


@contextlib.asynccontextmanager
async def stopped(settings: Path) -> AsyncGenerator[Any]:
    """Run a server that is stopped at the end."""
    gateway = Gateway(load_settings(settings), fake_worker_command().argv)
    async with connected(await gateway.start()) as models:
        yield models
    await gateway.stop()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncGenerator[Any]:
    async with grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),)) as channel:
        yield model_pb2_grpc.ModelServiceStub(channel)


async def get(models: Any, name: str) -> model_pb2.Model:
    return (await models.GetModel(model_pb2.GetModelRequest(model=name), timeout=LIMIT_S)).model


@pytest.mark.parametrize("first", [stopped, killed])
async def test_load_options_outlive_the_server(settings: Path, first: Any) -> None:
    async with first(settings) as models:
        request = model_pb2.LoadModelRequest(model="a", options=model_pb2.LoadOptions(max_batch_rows=3), pinned=True)
        request.idle_ttl.seconds = 99
        await models.LoadModel(request, timeout=LIMIT_S)
    async with stopped(settings) as models:
        model = await get(models, "a")
        assert (model.limits.max_batch_rows, model.state) == (3, model_pb2.MODEL_STATE_UNLOADED)
        assert model.pinned


async def test_what_is_unloaded_by_hand_is_forgotten(settings: Path) -> None:
    async with killed(settings) as models:
        options = model_pb2.LoadOptions(max_batch_rows=3)
        request = model_pb2.LoadModelRequest(model="a", options=options, pinned=True, return_immediately=True)
        await models.LoadModel(request, timeout=LIMIT_S)
        await models.UnloadModel(model_pb2.UnloadModelRequest(model="a"), timeout=LIMIT_S)
    async with stopped(settings) as models:
        model = await get(models, "a")
        assert (model.limits.max_batch_rows, model.pinned) == (16, False)


async def test_two_servers_do_not_keep_their_state_in_one_file(settings: Path) -> None:
    first = Gateway(load_settings(settings))
    await first.start()
    Path(settings.parent / "g.sock").unlink()  # noqa: ASYNC240 - the address alone does not tell the two apart
    second = Gateway(load_settings(settings))
    with pytest.raises(SettingsError, match="state_folder"):
        await second.start()
    await second.stop()
    await first.stop()
