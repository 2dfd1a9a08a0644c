"""Builds the gateway, starts it, drains it and stops it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2

from gateway import health
from gateway.address import Address, ListenError, parse_address
from gateway.desired_adapters import DesiredAdapters
from gateway.errors import ServerDraining
from gateway.estimate import Estimator
from gateway.exchange import RelayLimits, RelayParts
from gateway.health import Health
from gateway.hub.cache import cache_folder
from gateway.hub.download import PULL_COMMAND, Downloader, pull_command
from gateway.inventory import Inventory, Sources
from gateway.log_output import LogOutput, library_lines, standard_error
from gateway.logs import LogRing, make_log
from gateway.one_shot import MAX_AT_ONCE, OneShot
from gateway.parts import (
    found_models,
    library_options,
    make_admission,
    make_catalogue,
    make_workers,
    pull_refusal,
    socket_folder,
)
from gateway.process import Command
from gateway.pulls import Pulls
from gateway.reflection import add_reflection
from gateway.relay import Relay, methods_of
from gateway.requests import Requests
from gateway.services.adapter import AdapterService
from gateway.services.admin import AdminService, Drained
from gateway.services.model import ModelService
from gateway.services.registration import add_service
from gateway.services.server import ServerService
from gateway.services.stock import Stock
from gateway.settings import Settings, process_environment
from gateway.worker_starter import WorkerStarter, worker_environment, worker_settings

__all__ = ["Gateway", "ListenError", "serve"]

END_LIMIT_S = 2.0  # for requests that were ended to leave, once the grace is over
LAST_LINES_S = 1.0  # for the last log lines to be written
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WORKER_COMMAND = (sys.executable, "-P", "-m", "worker")
RELAYED = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"],
    transcription_pb2.DESCRIPTOR.services_by_name["TranscriptionService"],
)

ADAPTERS = model_pb2.DESCRIPTOR.services_by_name["AdapterService"]


async def serve(
    settings: Settings, announce: Callable[[str], None], reload: Callable[[], Settings] | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, let running requests finish, and return when every worker is gone.

    A SIGHUP that is ignored already, as nohup has it, stays ignored.

    Args:
        settings: all of them.
        announce: is called once with the address, as soon as RPCs are accepted.
        reload: reads the settings again when the catalogue is refreshed; None: they stay as they are.

    Raises:
        ListenError: the server cannot listen where it was told to.
        SettingsError: two models share a name, or a name is none that a client could send.
    """
    gateway = Gateway(settings, reload=reload)
    stops = _Stops()
    loop = asyncio.get_running_loop()
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = STOP_SIGNALS if is_kept else (*STOP_SIGNALS, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stops.ask)
    with library_lines(gateway.log):
        try:
            announce(await gateway.start())
            await stops.first.wait()
            await gateway.drain_or_hurry(stops.second)
        finally:
            await gateway.stop(stops.second)
            for number in numbers:
                loop.remove_signal_handler(number)


class Gateway:
    """All parts of one server, put together. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        worker_command: tuple[str, ...] = WORKER_COMMAND,
        reload: Callable[[], Settings] | None = None,
    ) -> None:
        """Build everything; nothing runs or listens yet.

        Args:
            settings: all of them.
            worker_command: the program of workers with its first arguments.
            reload: reads the settings again when the catalogue is refreshed; None: they stay as they are.

        Raises:
            ListenError: the address is not one that this server may listen at, or workers have no place to listen.
            SettingsError: the models' names contradict each other.
        """
        self.settings = settings
        self._address: Address = parse_address(settings.listen)
        self._ring = LogRing(settings.logs.kept_lines)
        self._output = LogOutput(standard_error(), settings.logs.format)
        self.log = make_log(self._ring, settings.logs.level, settings.logs.format, self._output)
        self._command = Command(worker_command, worker_environment(process_environment()))
        self._cache = cache_folder(process_environment())
        sources = Sources(settings, self._cache, reload or (lambda: settings))
        found = found_models(sources)
        self._catalogue = make_catalogue(settings, found, self._command, self.log)
        self._admission = make_admission(settings.limits)
        self._requests = Requests()
        self._sockets = socket_folder()
        self._desired = DesiredAdapters()
        starter = WorkerStarter(
            self._catalogue, settings, self._sockets, self._command, self.log, desired=self._desired
        )
        self._workers = make_workers(settings, self._catalogue, starter, self.log)
        self._inventory = Inventory(found, sources, self._catalogue, self._workers, self.log)
        self._pulls = Pulls(self._downloader().run, partial(self._inventory.refresh, with_settings=False))
        self._server = grpc.aio.server(options=library_options(settings.grpc))
        self._services = self._add_services()
        self._health = Health(self._services, self._catalogue, self._workers)
        add_service(self._server, health.SERVICE, self._health, self.log)
        add_reflection(self._server, (*self._services, health.SERVICE.full_name), self.log)
        self._followers: list[asyncio.Task[None]] = []
        self._is_bound = False

    async def start(self) -> str:
        """Listen and accept RPCs; return the address with the port that was taken.

        Raises:
            ListenError: the address is taken or not allowed.
        """
        address = self._address.bind(self._server)
        self._is_bound = True
        await self._workers.start()
        following = {
            "health": self._health.follow(),
            "inventory": self._inventory.follow(),
            "adapters": self._desired.follow(self._workers.watch()),
        }
        self._followers += [asyncio.create_task(work, name=name) for name, work in following.items()]
        await self._server.start()
        for model in self._catalogue.models:
            if not model.checkpoint.exists():
                self.log.warning("checkpoint is not there", model=model.name, checkpoint=str(model.checkpoint))
        self.log.info("server started", address=address, models=[model.name for model in self._catalogue.models])
        return address

    async def drain(self, grace_s: float) -> Drained:
        """Take no new work, wait for what runs, and end what is left after `grace_s` seconds."""
        self._health.drain()
        self._admission.close()
        held = list(self._requests)
        self.log.info("server drains", requests=len(held), grace_s=grace_s)
        self._workers.announce_ending(grace_s)
        if await self._requests.until_empty(grace_s):
            return Drained(len(held), 0)
        left = list(self._requests)
        for request in left:
            request.abort(ServerDraining())
        await self._requests.until_empty(END_LIMIT_S)
        return Drained(max(0, len(held) - len(left)), len(left))

    async def drain_or_hurry(self, hurry: asyncio.Event) -> None:
        """Drain with the configured grace; once `hurry` is set, with the short one."""
        draining = asyncio.create_task(self.drain(self.settings.limits.drain_grace_s))
        hurried = asyncio.create_task(hurry.wait())
        try:
            await asyncio.wait([draining, hurried], return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                await self.drain(self.settings.limits.short_grace_s)
        finally:
            for task in (draining, hurried):
                task.cancel()
            await asyncio.wait([draining, hurried])

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Stop every worker, sooner once `hurry` is set, then the server, and leave no socket behind."""
        hurrying = asyncio.create_task(self._hurry(hurry or asyncio.Event()))
        try:
            await self._pulls.close()
            await self._workers.stop(0.0)
        finally:
            hurrying.cancel()
        await self._server.stop(None)
        for follower in self._followers:
            follower.cancel()
        if self._followers:
            await asyncio.wait(self._followers)
        if self._is_bound:
            self._address.release()
        self._sockets.close()
        self.log.info("server stopped")
        await asyncio.to_thread(self._output.close, LAST_LINES_S)

    async def _hurry(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self._workers.hurry()

    def _add_services(self) -> tuple[str, ...]:
        """Put the public services on the server and return their full names."""
        settings, limits = self.settings, self.settings.limits
        parts = RelayParts(
            catalogue=self._catalogue,
            admission=self._admission,
            requests=self._requests,
            workers=self._workers,
            limits=RelayLimits(limits.max_request_s, limits.first_message_s, limits.slow_reader_s),
            log=self.log,
        )
        self._server.add_generic_rpc_handlers((Relay(methods_of(*RELAYED), parts),))
        models = ModelService(
            self._catalogue, self._workers, self._admission, limits.unload_grace_s, self._estimator(), self._stock()
        )
        admin = AdminService(self._catalogue, self._requests, self._ring, self.drain, limits.drain_grace_s, self.log)
        identity = ServerService(
            secrets.token_hex(6),
            time.time(),
            settings.grpc.max_request_bytes,
            self._catalogue,
            self._workers,
            self._requests,
        )
        own: Iterable[tuple[ServiceDescriptor, object]] = (
            (model_pb2.DESCRIPTOR.services_by_name["ModelService"], models),
            (server_pb2.DESCRIPTOR.services_by_name["AdminService"], admin),
            (server_pb2.DESCRIPTOR.services_by_name["ServerService"], identity),
        )
        for service, methods in own:
            add_service(self._server, service, methods, self.log)
        adapters = AdapterService(self._catalogue, self._workers, self._admission, self._desired)
        add_service(self._server, ADAPTERS, adapters, self.log, is_timed=True)
        return tuple(service.full_name for service in (*RELAYED, *(service for service, _ in own), ADAPTERS))

    def _stock(self) -> Stock:
        refusal = pull_refusal(self.settings)
        return Stock(
            self._catalogue, self._workers, self._admission, self._inventory, self._pulls, self._cache, refusal
        )

    def _downloader(self) -> Downloader:
        return Downloader(pull_command(process_environment(), self._cache, PULL_COMMAND), self.log)

    def _estimator(self) -> Estimator:
        command = Command((*self._command.argv, "fit"), self._command.environment)
        one_shot = OneShot(command, self.settings.limits.describe_s, self.log, asyncio.Semaphore(MAX_AT_ONCE))
        return Estimator(
            self._catalogue,
            self._workers,
            one_shot,
            lambda model, options: worker_settings(model, options, self.settings),
        )


@dataclass(slots=True)
class _Stops:
    """How often the process was asked to stop."""

    first: asyncio.Event
    second: asyncio.Event

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def ask(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()
