"""Health of the server, its services and its models by the protocol of `grpc.health.v1`.

The name of a model is a service name here: one that is loaded, or can be loaded by a request, is SERVING. Each
watcher sees the newest state; states in between may be skipped, as the protocol allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from gateway.catalogue import MAX_NAME_CHARS, Catalogue
from gateway.errors import ModelNotFound
from gateway.model_status import ModelState, WorkerPool
from gateway.sight import all_seen, seen

FILE: Any = health_pb2.DESCRIPTOR
SERVICE: ServiceDescriptor = FILE.services_by_name["Health"]
CAN_SERVE = frozenset(
    {ModelState.UNLOADED, ModelState.QUEUED, ModelState.LOADING, ModelState.ACTIVE, ModelState.DEGRADED}
)
MAX_LISTED = 1000
RECENTLY_S = 60.0  # A check this long ago is taken to come again.

LIST_RESPONSE: Any = GetMessageClass(FILE.message_types_by_name["HealthListResponse"])
Status = int  # health_pb2.HealthCheckResponse.ServingStatus
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers Check, Watch and List from the states of the models."""

    def __init__(
        self,
        services: Iterable[str],
        catalogue: Catalogue,
        workers: WorkerPool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report on `services` (full names), the models of the catalogue, and the server as a whole."""
        self._now = now
        self._num_watches = 0
        self._checked_s = -math.inf
        self._services = frozenset((*services, ""))
        self._catalogue = catalogue
        self._workers = workers
        self._is_draining = False
        self._changed = asyncio.Event()

    @property
    def is_watched(self) -> bool:
        """Say whether anybody looks at health: an open Watch, or a Check or List within the last minute."""
        return self._num_watches > 0 or self._now() - self._checked_s < RECENTLY_S

    def drain(self) -> None:
        """Report everything as NOT_SERVING from now on."""
        self._is_draining = True
        self._wake()

    async def follow(self) -> None:
        """Tell watchers of every change of a model; runs until it is cancelled."""
        changes = self._workers.watch()
        self._wake()  # what changed while nobody followed
        async for _ in changes:
            self._wake()

    async def Check(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return the status of one service or model.

        Raises:
            ModelNotFound: there is none of this name.
            CallerError: the caller is not known, or may not know of such a model.
        """
        self._checked_s = self._now()
        if request.service not in self._services:
            seen(self._catalogue, request.service[:MAX_NAME_CHARS])
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any) -> AsyncIterator[Any]:  # noqa: N802 - as above
        """Yield the status of one service, then each change; SERVICE_UNKNOWN where there is none of this name.

        Raises:
            ModelForbidden: the caller may not know of such a model.
        """
        self._check(request.service)
        last: Status | None = None
        self._num_watches += 1
        try:
            while True:
                changed = self._changed
                status = self._status(request.service)
                if status != last:
                    yield health_pb2.HealthCheckResponse(status=status)
                    last = status
                else:
                    await changed.wait()
        finally:
            self._num_watches -= 1

    async def List(self, request: Any) -> Any:  # noqa: ARG002, N802 - it has no fields
        """Return the status of everything there is."""
        self._checked_s = self._now()
        names = [*sorted(self._services), *(model.name for model in all_seen(self._catalogue))][:MAX_LISTED]
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in names}
        return LIST_RESPONSE(statuses=statuses)

    def _check(self, name: str) -> None:
        """Refuse the name of a model that the caller may not use, whether there is one or not."""
        if name not in self._services:
            with contextlib.suppress(ModelNotFound):
                seen(self._catalogue, name[:MAX_NAME_CHARS])

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
