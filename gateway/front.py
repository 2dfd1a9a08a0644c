"""What clients reach of a gateway: where it listens, who may call, and the services that answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import grpc.aio
from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2

from gateway import health
from gateway.admin_server import AdminServer, Served
from gateway.core import Core
from gateway.entrance import Entrance
from gateway.exchange import RelayLimits, RelayParts
from gateway.farewell import Farewell
from gateway.followers import Begin
from gateway.health import Health
from gateway.journal import Journal
from gateway.parts import library_options
from gateway.reflection import add_reflection
from gateway.relay import Relay, methods_of
from gateway.services.adapter import AdapterService
from gateway.services.admin import AdminService, Drained
from gateway.services.model import ModelService
from gateway.services.registration import add_service
from gateway.services.server import ServerService

RELAYED = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"],
    transcription_pb2.DESCRIPTOR.services_by_name["TranscriptionService"],
)
FAREWELL_LIMIT_S = 0.5  # for streams of the gateway's own services to be told of the end
RELAYED_METHODS = methods_of(*RELAYED)


class Front:
    """The servers of one gateway. Lives on one event loop.

    Attributes:
        health: of the server, its services and its models.
    """

    def __init__(self, journal: Journal, core: Core, drain: Callable[[float], Awaitable[Drained]]) -> None:
        """Build everything; nothing listens yet.

        Args:
            journal: the log and the settings.
            core: what serves models.
            drain: what DrainServer does.

        Raises:
            ListenError: the address is not one that this server may listen at.
            SettingsError: certificates or tokens cannot be used.
        """
        settings, log = journal.live.now(), journal.log
        observer = journal.observation.observer
        self._entrance = Entrance(settings, core.requests, RELAYED_METHODS, log, observer)
        self._farewell = Farewell(RELAYED_METHODS)
        interceptors = (*self._entrance.interceptors, self._farewell)
        self._server = grpc.aio.server(interceptors=interceptors, options=library_options(settings.grpc))
        self._server.add_generic_rpc_handlers((Relay(RELAYED_METHODS, _relay_parts(journal, core)),))
        own = _own_services(journal, core, drain)
        names = tuple(service.full_name for service in (*RELAYED, *(one.service for one in own)))
        self.health = Health(names, core.catalogue, core.workers)
        own = (*own, Served(health.SERVICE, self.health))
        for service, methods, is_timed in own:
            add_service(self._server, service, methods, log, is_timed=is_timed, observer=observer)
        add_reflection(self._server, (*names, health.SERVICE.full_name), log)
        self._admin = AdminServer(settings.admin_listen, own, log) if settings.admin_listen else None
        self._closing: asyncio.Task[None] | None = None

    def bind(self) -> str:
        """Take the address, and return it with the port that was taken.

        Raises:
            ListenError: it is taken or not allowed.
        """
        return self._entrance.bind(self._server)

    async def start(self) -> None:
        """Accept RPCs.

        Raises:
            ListenError: the address of the admin socket is taken or not allowed.
        """
        await self._server.start()
        if self._admin is not None:
            await self._admin.start()

    def followers(self) -> dict[str, Begin]:
        """Return what is to run from the start to the end, by name."""
        return {"health": self.health.follow, **self._entrance.following()}

    async def refresh(self) -> None:
        """Read tokens and certificates again now, where they have changed; they are looked at each second too."""
        await self._entrance.refresh()

    def close_connections(self, limit_s: float) -> None:
        """Have clients open no more streams here; `stop` ends those that are open, or `limit_s` does."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._server.stop(limit_s), name="closing")

    async def stop(self) -> None:
        """End what is open, and leave no socket behind."""
        await self._farewell.say(FAREWELL_LIMIT_S)
        await self._server.stop(None)
        if self._closing is not None:
            await self._closing
        self._entrance.release()
        if self._admin is not None:
            await self._admin.stop()


def _relay_parts(journal: Journal, core: Core) -> RelayParts:
    limits = journal.live.now().limits
    return RelayParts(
        catalogue=core.catalogue,
        admission=core.admission,
        requests=core.requests,
        workers=core.workers,
        limits=RelayLimits(limits.max_request_s, limits.first_message_s, limits.slow_reader_s),
        log=journal.log,
        retries=core.retries,
        observer=journal.observation.observer,
        new_trace=journal.observation.new_trace,
    )


def _own_services(journal: Journal, core: Core, drain: Callable[[float], Awaitable[Drained]]) -> tuple[Served, ...]:
    """Return the services that the gateway answers itself, but for health."""
    settings = journal.live.now()
    models = ModelService(
        core.catalogue,
        core.workers,
        core.admission,
        settings.limits.unload_grace_s,
        core.estimator,
        core.stock,
        core.state.settle,
    )
    admin = AdminService(
        core.catalogue,
        core.requests,
        journal.ring,
        drain,
        settings.limits.drain_grace_s,
        journal.log,
        core.log_setting.change,
    )
    identity = ServerService(
        secrets.token_hex(6),
        time.time(),
        settings.grpc.max_request_bytes,
        core.catalogue,
        core.workers,
        core.requests,
    )
    adapters = AdapterService(core.catalogue, core.workers, core.admission, core.desired)
    return (
        Served(model_pb2.DESCRIPTOR.services_by_name["ModelService"], models),
        Served(server_pb2.DESCRIPTOR.services_by_name["AdminService"], admin),
        Served(server_pb2.DESCRIPTOR.services_by_name["ServerService"], identity),
        Served(model_pb2.DESCRIPTOR.services_by_name["AdapterService"], adapters, is_timed=True),
    )
