"""A server with the gateway's own services over a scripted pool of workers, and stubs to call it."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from pomona.v1 import model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from gateway import health
from gateway.catalogue import CatalogueModel
from gateway.health import Health
from gateway.logs import LogRing
from gateway.services.admin import AdminService, Drained
from gateway.services.model import ModelService
from gateway.services.registration import add_service
from gateway.services.server import ServerService
from tests.support.scripted_worker import ScriptedPool, catalogue, relay_parts

MODELS = tuple(
    CatalogueModel(name, Path(__file__), aliases)
    for name, aliases in (("model-a", ("alias-a",)), ("model-b", ()), ("org/model-c", ()))
)
SERVICES = ("pomona.v1.ModelService", "pomona.v1.AdminService")


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

    def __post_init__(self) -> None:
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.admin = server_pb2_grpc.AdminServiceStub(self.channel)
        self.server = server_pb2_grpc.ServerServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)


@contextlib.asynccontextmanager
async def control_plane(folder: Path, pool: ScriptedPool | None = None) -> AsyncGenerator[ControlPlane]:
    """Serve the gateway's own services over `pool`."""
    pool = pool or ScriptedPool()
    ring = LogRing(2000)
    parts = relay_parts(pool, ring)
    known = catalogue(*MODELS)
    drains: list[float] = []

    async def drain(grace_s: float) -> Drained:
        drains.append(grace_s)
        return Drained(2, 1)

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    health_service = Health(SERVICES, known, pool)
    admin = AdminService(known, parts.requests, ring, drain, 30.0, parts.log)
    own = (
        (model_pb2.DESCRIPTOR.services_by_name["ModelService"], ModelService(known, pool, parts.admission, 30.0)),
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
        yield ControlPlane(address, channel, pool, ring, health_service, parts, drains)
    finally:
        await channel.close(None)
        await server.stop(None)
