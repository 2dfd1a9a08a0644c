"""Runs one worker: answers at once, loads meanwhile, serves, and ends in order."""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any

import grpc.aio

from models.registry import LoadProgress
from worker.device_turn import device_turn
from worker.engine import Engine
from worker.errors import ModelLoading, ModelUnloading
from worker.failures import failure_of
from worker.footprint import FootprintGauge
from worker.hosting import Hosting
from worker.services.desk import Desk
from worker.services.edge import Edge
from worker.services.other_tasks import refusals
from worker.services.requests import OpenRequests
from worker.services.worker import Identity, WorkerService
from worker.settings import WorkerSettings
from worker.status import State, Status

EXIT_OK, EXIT_LOAD_FAILED, EXIT_BROKEN, EXIT_NO_SOCKET = 0, 3, 70, 71
SOCKET_UMASK = 0o177
MAX_METADATA_BYTES = 16 << 10
# What the gateway may add to a request that is as large as it may be.
ENVELOPE_BYTES = 16 << 10
MIN_PING_INTERVAL_MS = 20_000
# How long the end may take, part by part.
TERMINATE_GRACE_S = 8.0
TOLD_TIMEOUT_S = 3.0
ANSWERS_TIMEOUT_S = 1.0
SERVER_GRACE_S = 1.0
# How much longer a tick may take for each token of it.
STEP_TOKEN_S = 0.25
WAIT_INTERVAL_S = 0.005

log = logging.getLogger(__name__)


class WorkerServer:
    """One worker from its settings to its exit code; made and run on the event loop.

    Args:
        settings: what the gateway wrote.
        hosting: of the model's kind.
    """

    def __init__(self, settings: WorkerSettings, hosting: Hosting) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._hosting = hosting
        self._status = Status()
        self._gauge = FootprintGauge()
        self._exit_code: asyncio.Future[int] = loop.create_future()
        self._stopping: set[asyncio.Task[int]] = set()
        self._engine: Engine[Any, Any] = Engine(
            hosting.workload,
            loop,
            slow_reader_s=settings.slow_reader_s,
            turn=device_turn(settings.gpu_turns, self._allowance_s),
            on_fatal=lambda: self._exit(EXIT_BROKEN),
        )
        self._desk = Desk(self._engine, OpenRequests(), settings.outbox_bytes)

    async def run(self) -> int:
        """Serve until told to stop, and return the exit code of the process."""
        try:
            server = self._make_server()
        except RuntimeError:  # gRPC's word for a socket that cannot be made; no thread runs yet.
            log.error("the worker cannot listen on its socket")  # noqa: TRY400 - a trace would say no more
            await self._hosting.close()
            return EXIT_NO_SOCKET
        self._engine.start()
        await server.start()
        self._take_signals()
        background = [asyncio.create_task(self._gauge.run()), asyncio.create_task(self._load())]
        try:
            return await self._exit_code
        finally:
            for task in background:
                task.cancel()
            await server.stop(SERVER_GRACE_S)
            await self._hosting.close()

    async def stop(self, grace_s: float) -> int:
        """Take no more requests, let the running ones finish, end the rest, and have the process exit.

        Args:
            grace_s: how long they may run on; a second call with less shortens it.

        Returns:
            How many were ended.
        """
        self._status.drain()
        self._desk.requests.tell_ending(grace_s)
        aborted = await self._engine.stop(grace_s)
        self._desk.requests.end_unhanded(ModelUnloading())
        await self._wait_for_answers()
        self._status.end()
        self._exit(EXIT_OK)
        return aborted

    def check_active(self) -> None:
        """Do nothing while there is a loaded model.

        Raises:
            ModelLoading: it is not there yet.
            ModelUnloading: it is not there any more.
        """
        if self._status.state is State.LOADING:
            done = self._engine.load_progress
            raise ModelLoading(done.bytes_done, done.bytes_total) if isinstance(done, LoadProgress) else ModelLoading
        if self._status.state is not State.ACTIVE:
            raise ModelUnloading

    def _allowance_s(self) -> float:
        """Return how much longer than usual the present tick may take; any thread may ask."""
        return self._hosting.workload.counts().step_tokens * STEP_TOKEN_S

    def _make_server(self) -> grpc.aio.Server:
        settings = self._settings
        options = (
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", settings.max_request_bytes + ENVELOPE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        )
        server = grpc.aio.server(options=options)
        edge = Edge(settings.secret, settings.model, settings.max_response_bytes)
        identity = Identity(settings.instance_id, settings.model)
        worker = WorkerService(identity, self._status, self._desk, self._gauge, self.stop)
        hosting = self._hosting
        answered = hosting.handlers(edge, self._desk, self.check_active)
        refused = refusals(edge, hosting.services, hosting.tasks)
        server.add_generic_rpc_handlers((*answered, *refused, worker.handlers(edge)))
        umask = os.umask(SOCKET_UMASK)
        try:
            server.add_insecure_port(f"unix:{settings.socket}")
        finally:
            os.umask(umask)
        return server

    async def _load(self) -> None:
        """Wait for the engine's load, and tell what came of it."""
        try:
            message = await self._hosting.begin(await self._engine.load())
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever a load raises is its failure, told by the error table)
            await self._fail(error)
            return
        if self._status.state is State.LOADING:
            self._status.activate(message)

    async def _fail(self, error: Exception) -> None:
        failure = failure_of(error, model=self._settings.model)
        if self._status.state is not State.LOADING:
            return
        self._status.fail(failure)
        await self._status.wait_until_told(TOLD_TIMEOUT_S)
        facts = {"reason": failure.reason, "message": failure.message, **failure.metadata}
        log.error("load failed: %s", failure.message, extra={"failure": facts})
        self._exit(EXIT_LOAD_FAILED)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)

    def _terminate(self) -> None:
        """Stop in order; at once where that has begun already."""
        grace_s = TERMINATE_GRACE_S if self._status.state is State.ACTIVE else 0.0
        task = asyncio.create_task(self.stop(grace_s))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _wait_for_answers(self) -> None:
        """Let the ended requests send their statuses."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_TIMEOUT_S):
                while self._desk.requests.all():  # noqa: ASYNC110  (each ends within a turn of the loop)
                    await asyncio.sleep(WAIT_INTERVAL_S)

    def _exit(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)
