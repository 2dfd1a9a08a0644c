"""A server with the gateway's own services over a scripted pool of workers, and stubs to call it."""

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from pomona.v1 import model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from gateway import health
from gateway.catalogue import Catalogue, CatalogueModel, Describe
from gateway.estimate import Estimator, Fits
from gateway.health import Health
from gateway.hub.messages import Done, Order, Progress
from gateway.inventory import Inventory, Sources
from gateway.logs import LogRing
from gateway.memory import MachineMemory
from gateway.model_status import LoadOptions
from gateway.one_shot import OneShot
from gateway.process import Command
from gateway.pull_errors import HubUnreachable
from gateway.pulls import Pulls, Run
from gateway.services.admin import AdminService, Drained
from gateway.services.model import ModelService
from gateway.services.registration import add_service
from gateway.services.server import ServerService
from gateway.services.stock import Stock
from gateway.settings import Settings, SettingsError, load_settings
from tests.support.scripted_worker import ScriptedPool, no_description, relay_parts

MODELS = tuple(
    CatalogueModel(name, Path(__file__), aliases)
    for name, aliases in (("model-a", ("alias-a",)), ("model-b", ()), ("org/model-c", ()))
)
SERVICES = ("pomona.v1.ModelService", "pomona.v1.AdminService")


async def no_hub(order: Order, on_progress: Callable[[Progress], None]) -> Done:
    """Pull nothing."""
    raise HubUnreachable(order.repository, "there is no hub")


def no_settings() -> Settings:
    """Read nothing again."""
    raise SettingsError("there is no file")


@dataclass
class HubSide:
    """How models are pulled, and what is read again."""

    cache: Path
    run: Run = no_hub
    reload: Callable[[], Settings] = no_settings
    refusal: str = ""


@dataclass
class ControlPlane:
    """The parts, the stubs and what was asked for."""

    address: str
    channel: grpc.aio.Channel
    pool: ScriptedPool
    ring: LogRing
    health_service: Health
    parts: object = None
    drains: list[float] = field(default_factory=list)
    stock: Stock | None = None
    levels: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def __post_init__(self) -> None:
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.admin = server_pb2_grpc.AdminServiceStub(self.channel)
        self.server = server_pb2_grpc.ServerServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)


@contextlib.asynccontextmanager
async def control_plane(
    folder: Path,
    pool: ScriptedPool | None = None,
    *,
    fit: str = "print({})",
    memory: MachineMemory | None = None,
    hub: HubSide | None = None,
    describe: Describe = no_description,
) -> AsyncGenerator[ControlPlane]:
    """Serve the gateway's own services over `pool`.

    Args:
        folder: where it listens.
        pool: of workers.
        fit: the Python program that estimates; its last two arguments are the checkpoint and the settings.
        memory: of the machine; None: 4,000 bytes, and what of them is free is not known.
        hub: how models are pulled; None: they are not, and the cache is empty.
        describe: says what the checkpoints are.
    """
    hub = hub or HubSide(folder / "hub")
    pool = pool or ScriptedPool()
    ring = LogRing(2000)
    parts = relay_parts(pool, ring)
    known = Catalogue(MODELS, describe)
    one_shot = OneShot(Command((sys.executable, "-c", fit), {}), 20.0, parts.log, asyncio.Semaphore(2))
    fits = Fits(known, one_shot, lambda _, options: worker_settings(options), lambda: memory or MachineMemory(4_000))
    estimator = Estimator(pool, fits)
    models = [{"name": one.name, "checkpoint": str(one.checkpoint), "aliases": one.aliases} for one in MODELS]
    sources = Sources(load_settings(None, {"models": models}), hub.cache, hub.reload)
    inventory = Inventory(sources.find(), sources, known, pool, parts.log)
    known.replace(sources.find().models.values())
    pulls = Pulls(hub.run, partial(inventory.refresh, with_settings=False))
    stock = Stock(known, pool, parts.admission, inventory, pulls, hub.cache, hub.refusal)
    follower = asyncio.create_task(inventory.follow())
    drains: list[float] = []
    levels: list[tuple[str, str]] = []

    async def drain(grace_s: float) -> Drained:
        drains.append(grace_s)
        return Drained(2, 1)

    async def set_level(logger: str, level: str) -> None:
        levels.append((logger, level))

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    health_service = Health(SERVICES, known, pool)
    admin = AdminService(known, parts.requests, ring, drain, 30.0, parts.log, set_level)
    own = (
        (
            model_pb2.DESCRIPTOR.services_by_name["ModelService"],
            ModelService(known, pool, parts.admission, 30.0, estimator, stock),
        ),
        (server_pb2.DESCRIPTOR.services_by_name["AdminService"], admin),
        (
            server_pb2.DESCRIPTOR.services_by_name["ServerService"],
            ServerService("i1", 1.5, 1000, known, pool, parts.requests),
        ),
        (health.SERVICE, health_service),
    )
    for service, methods in own:
        add_service(server, service, methods, parts.log)
    address = f"unix:{folder / 'control.sock'}"
    server.add_insecure_port(address)
    await server.start()
    channel = grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),))
    try:
        yield ControlPlane(address, channel, pool, ring, health_service, parts, drains, stock, levels)
    finally:
        await pulls.close()
        follower.cancel()
        await asyncio.wait([follower])
        await channel.close(None)
        await server.stop(None)


def worker_settings(options: LoadOptions) -> dict[str, Any]:
    """Return a worker's settings that are these options, and some that do not concern what it takes."""
    return {**dataclasses.asdict(options), "log_level": "info", "cpu_kernels": True, "kv_bytes": None}
