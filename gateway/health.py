"""Health of the server, its services and its models by the protocol of `grpc.health.v1`.

The name of a model is a service name here: one that is loaded, or can be loaded by a request, is SERVING. Each
watcher sees the newest state; states in between may be skipped, as the protocol allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from gateway.catalogue import MAX_NAME_CHARS, Catalogue
from gateway.errors import ModelNotFound
from gateway.model_status import ModelState, WorkerPool

FILE: Any = health_pb2.DESCRIPTOR
SERVICE: ServiceDescriptor = FILE.services_by_name["Health"]
CAN_SERVE = frozenset(
    {ModelState.UNLOADED, ModelState.QUEUED, ModelState.LOADING, ModelState.ACTIVE, ModelState.DEGRADED}
)
MAX_LISTED = 1000

LIST_RESPONSE: Any = GetMessageClass(FILE.message_types_by_name["HealthListResponse"])
Status = int  # health_pb2.HealthCheckResponse.ServingStatus
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers Check, Watch and List from the states of the models."""

    def __init__(self, services: Iterable[str], catalogue: Catalogue, workers: WorkerPool) -> None:
        """Report on `services` (full names), the models of the catalogue, and the server as a whole."""
        self._services = frozenset((*services, ""))
        self._catalogue = catalogue
        self._workers = workers
        self._is_draining = False
        self._changed = asyncio.Event()

    def drain(self) -> None:
        """Report everything as NOT_SERVING from now on."""
        self._is_draining = True
        self._wake()

    async def follow(self) -> None:
        """Tell watchers of every change of a model; runs until it is cancelled."""
        async for _ in self._workers.watch():
            self._wake()

    async def Check(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return the status of one service or model.

        Raises:
            ModelNotFound: there is none of this name.
        """
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            raise ModelNotFound(request.service[:MAX_NAME_CHARS])
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any) -> AsyncIterator[Any]:  # noqa: N802 - as above
        """Yield the status of one service, then each change; SERVICE_UNKNOWN where there is none of this name."""
        last: Status | None = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            else:
                await changed.wait()

    async def List(self, request: Any) -> Any:  # noqa: ARG002, N802 - it has no fields
        """Return the status of everything there is."""
        names = [*sorted(self._services), *(model.name for model in self._catalogue.models)][:MAX_LISTED]
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in names}
        return LIST_RESPONSE(statuses=statuses)

    def _status(self, name: str) -> Status:
        if name in self._services:
            return NOT_SERVING if self._is_draining else SERVING
        try:
            model = self._catalogue.resolve(name)
        except ModelNotFound:
            return SERVICE_UNKNOWN
        can_serve = self._workers.state(model.name).state in CAN_SERVE
        return SERVING if can_serve and not self._is_draining else NOT_SERVING

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
