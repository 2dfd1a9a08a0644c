"""ServerService: what this server is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from importlib import metadata

from pomona.v1 import server_pb2

from gateway.catalogue import Catalogue
from gateway.footprint import footprint_bytes
from gateway.memory import machine_memory
from gateway.model_status import WorkerPool
from gateway.requests import Requests
from gateway.services.strict import check_range
from gateway.services.views import seconds_of, timestamp
from gateway.sight import all_seen, seen

SCHEMA_REVISION = 1
MINIMUM_CLIENT_REVISION = 1
DEFAULT_INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 3600.0


@dataclass(frozen=True, slots=True)
class ServerService:
    """The methods of `pomona.v1.ServerService` that are built.

    Attributes:
        instance_id: new for every start of the server.
        start_time_s: when it started, seconds since 1970.
        max_request_bytes: largest message that it takes.
        catalogue: which models there are.
        workers: what their workers said of the device and of their work.
        requests: in flight, and how those before ended.
    """

    instance_id: str
    start_time_s: float
    max_request_bytes: int
    catalogue: Catalogue
    workers: WorkerPool
    requests: Requests

    async def GetServerInfo(  # noqa: N802
        self,
        request: server_pb2.GetServerInfoRequest,  # noqa: ARG002 - it has no fields
    ) -> server_pb2.GetServerInfoResponse:
        """Return version, schema revision, device and limits; the device is known once a model was loaded."""
        return server_pb2.GetServerInfoResponse(
            version=_version("pomona"),
            schema_revision=SCHEMA_REVISION,
            minimum_client_revision=MINIMUM_CLIENT_REVISION,
            instance_id=self.instance_id,
            start_time=timestamp(self.start_time_s),
            device=self._device(),
            memory_total_bytes=machine_memory().total_bytes,
            memory_budget_bytes=self.workers.memory().budget_bytes,
            max_request_bytes=self.max_request_bytes,
            mlx_version=_version("mlx"),
        )

    async def GetStats(self, request: server_pb2.GetStatsRequest) -> server_pb2.GetStatsResponse:  # noqa: N802
        """Return what the workers of the named models count, or of all; only those that have a worker are there."""
        return server_pb2.GetStatsResponse(models=self._models_stats(request.models), server=await self._server_stats())

    async def WatchStats(  # noqa: N802
        self, request: server_pb2.WatchStatsRequest
    ) -> AsyncIterator[server_pb2.WatchStatsResponse]:
        """Yield the same now and after each interval, until the caller ends the stream.

        What is told is of the moment at which the caller takes it: one that is slow misses moments, and nothing waits.
        """
        interval_s = seconds_of(request.interval) if request.HasField("interval") else DEFAULT_INTERVAL_S
        check_range("interval", interval_s, MIN_INTERVAL_S, MAX_INTERVAL_S)
        while True:
            due_s = time.monotonic() + interval_s
            yield server_pb2.WatchStatsResponse(
                models=self._models_stats(request.models), server=await self._server_stats()
            )
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _models_stats(self, asked: Iterable[str]) -> list[server_pb2.ModelStats]:
        """Return what is counted of the named models, or of all; only those that have a worker are there.

        Raises:
            ModelNotFound: one of them is not known.
        """
        known = {seen(self.catalogue, name).name for name in asked}
        names = [model.name for model in all_seen(self.catalogue) if not known or model.name in known]
        return [stats for stats in map(self._model_stats, names) if stats is not None]

    async def _server_stats(self) -> server_pb2.ServerStats:
        """Return what holds for the server as a whole; the lag is what a task that is ready waits for its turn now."""
        own_bytes = await asyncio.to_thread(footprint_bytes, os.getpid())
        states = (self.workers.state(model.name) for model in self.catalogue.models)
        worker_bytes = sum(state.stats.memory.footprint_bytes for state in states if state.stats is not None)
        began_ns = time.monotonic_ns()
        await asyncio.sleep(0)
        memory = self.workers.memory()
        return server_pb2.ServerStats(
            time=timestamp(time.time()),
            open_streams=len(self.requests),
            footprint_bytes=(own_bytes or 0) + worker_bytes,
            reserved_bytes=memory.reserved_bytes,
            memory_pressure=server_pb2.MemoryPressure.ValueType(memory.pressure),
            event_loop_lag_us=(time.monotonic_ns() - began_ns) // 1000,
        )

    def _model_stats(self, name: str) -> server_pb2.ModelStats | None:
        """Return what the last heartbeat of a model's worker counted, and what the server counts of the model."""
        status = self.workers.state(name)
        if status.stats is None or status.worker is None:
            return None
        stats = server_pb2.ModelStats()
        stats.CopyFrom(status.stats)
        stats.model = status.model
        stats.memory.reserved_bytes = status.reserved_bytes
        stats.memory.limit_bytes = self.workers.memory().budget_bytes
        stats.restarts_total = status.worker.restart_count
        stats.requests_total.update(self.requests.ended(name))
        return stats

    def _device(self) -> str:
        facts = (self.workers.state(model.name).facts for model in self.catalogue.models)
        return next((one.runtime.device for one in facts if one is not None and one.runtime.device), "")


def _version(distribution: str) -> str:
    """Return what is installed, without importing it; empty where it is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
