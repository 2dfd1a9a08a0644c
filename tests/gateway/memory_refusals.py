"""One true cause for each reason of a machine that has no memory for a request now, over a real channel."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from gateway.catalogue import CatalogueModel
from gateway.logs import LogRing
from gateway.memory import MachineMemory
from gateway.model_status import PressureLevel
from gateway.relay import Relay
from tests.gateway.statuses import Seen, failure_of
from tests.gateway.test_loads import LIMIT_S, Tight
from tests.support.scripted_worker import METHODS, UNARY_UNARY, ScriptedPool, catalogue, relay_parts, request
from tests.support.waiting import eventually

Cause = Callable[[Path], Awaitable[Seen]]


@asynccontextmanager
async def tight_relay(folder: Path) -> AsyncGenerator[tuple[Tight, grpc.aio.Channel]]:
    """Serve two models that do not fit together."""
    farm = Tight(folder, ("a", "b"))
    await farm.begin()
    models = catalogue(*(CatalogueModel(model, Path(__file__)) for model in ("a", "b")))
    shared: Any = relay_parts(ScriptedPool(), LogRing(10))
    parts = dataclasses.replace(shared, catalogue=models, workers=farm.workers)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((Relay(METHODS, parts),))
    address = f"unix:{folder / 'gateway.sock'}"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),)) as channel:
            yield farm, channel
    finally:
        await farm.workers.stop(0.0)
        await server.stop(None)
        farm.sockets.close()


async def no_room(folder: Path) -> Seen:
    """Ask for a model while another, which is in use, has the memory."""
    async with tight_relay(folder) as (farm, channel):
        with await farm.workers.acquire("a", LIMIT_S):
            await eventually(lambda: farm.reserved() == 60)
            return await failure_of(channel.unary_unary(UNARY_UNARY)(request("b"), timeout=0.5))


async def pressed(folder: Path) -> Seen:
    """Ask while the memory of the machine is as good as full."""
    async with tight_relay(folder) as (farm, channel):
        farm.machine = MachineMemory(1000, 40)
        await eventually(lambda: farm.workers.memory().pressure is PressureLevel.HARD_LIMIT)
        return await failure_of(channel.unary_unary(UNARY_UNARY)(request("a"), timeout=LIMIT_S))


CAUSES: Mapping[str, Cause] = {"MEMORY_BUDGET": no_room, "MEMORY_PRESSURE": pressed}
