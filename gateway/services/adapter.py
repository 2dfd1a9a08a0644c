"""AdapterService: the adapters of a model, listed, loaded and unloaded in its worker, and kept for later workers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from pomona.v1 import model_pb2

from gateway.adapter_store import stored_adapters
from gateway.admission import Admission
from gateway.catalogue import Catalogue, CatalogueModel, is_name
from gateway.desired_adapters import DesiredAdapter, DesiredAdapters
from gateway.errors import AdapterNotFound
from gateway.model_status import ModelState, WorkerPool
from gateway.request_errors import InvalidField, MalformedRequest, Violation
from gateway.services.strict import check_range
from gateway.sight import seen
from gateway.status import failure_of
from gateway.tasks import check_task
from gateway.worker_call import WorkerRefusal, call_worker

SERVICE = "/pomona.v1.AdapterService/"
MAX_PAGE = 1000
LIST_LIMIT_S = 15.0
LOAD_LIMIT_S = 600.0  # for the worker, which goes on where its caller does not
UNLOAD_WAIT_S = 30.0  # for requests that use an adapter, where the caller gave no deadline
MAX_WAIT_S = 3600.0
MARGIN_S = 0.1  # of a caller's time, for the answer to reach it
# Their workers have adapters, or begin with those that they were told of.
WITH_WORKER = frozenset({ModelState.LOADING, ModelState.ACTIVE, ModelState.DEGRADED})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterService:
    """The methods of `pomona.v1.AdapterService`, each over a request and the seconds until the caller's deadline.

    Attributes:
        catalogue: which models there are.
        workers: who has loaded which.
        admission: says whether the server still takes work.
        desired: what later workers are told; changed by what is loaded and unloaded here.
    """

    catalogue: Catalogue
    workers: WorkerPool
    admission: Admission
    desired: DesiredAdapters
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    async def ListAdapters(  # noqa: N802
        self, request: model_pb2.ListAdaptersRequest, remaining_s: float | None
    ) -> model_pb2.ListAdaptersResponse:
        """Return a page of a model's adapters, by name; of one that is not loaded, what is there and what is wanted."""
        model = self._resolve(request.model)
        check_range("page_size", request.page_size, 0, MAX_PAGE)
        if request.page_token and not is_name(request.page_token):
            raise InvalidField((Violation("page_token", "is not one that this server gave"),))
        limit_s = min(LIST_LIMIT_S, _limit(remaining_s))
        if self._state(model) is not ModelState.ACTIVE:
            await check_task(f"{SERVICE}ListAdapters", model, self.catalogue, limit_s)
            return await self._stored(model, request)
        request.model = model.name
        with await self.workers.acquire(model.name, limit_s) as lease:
            return await call_worker(lease, f"{SERVICE}ListAdapters", request, model_pb2.ListAdaptersResponse, limit_s)

    async def LoadAdapter(  # noqa: N802
        self, request: model_pb2.LoadAdapterRequest, remaining_s: float | None
    ) -> model_pb2.LoadAdapterResponse:
        """Mount an adapter, loading its model where needed; a caller that goes away does not end it."""
        model = self._resolve(request.model)
        _check_name("adapter", request.adapter)
        if request.source:
            _check_name("source", request.source)
        self.admission.check_open()
        known = await asyncio.to_thread(stored_adapters, model.adapters_folder)
        source = request.source or request.adapter
        if self._state(model) is not ModelState.ACTIVE:
            await check_task(f"{SERVICE}LoadAdapter", model, self.catalogue, _limit(remaining_s))
            if source not in known:  # said before the model is loaded for it
                raise AdapterNotFound(source, known)
        request.model = model.name
        return await self._finished(self._load(model.name, request, _limit(remaining_s)))

    async def UnloadAdapter(  # noqa: N802
        self, request: model_pb2.UnloadAdapterRequest, remaining_s: float | None
    ) -> model_pb2.UnloadAdapterResponse:
        """Unmount an adapter once the requests that use it have ended; a caller that goes away does not end it."""
        model = self._resolve(request.model)
        if self._state(model) is not ModelState.ACTIVE:
            await check_task(f"{SERVICE}UnloadAdapter", model, self.catalogue, _limit(remaining_s))
        if self._state(model) not in WITH_WORKER:
            return await self._let_go(model, request.adapter)
        request.model = model.name
        limit_s = UNLOAD_WAIT_S + MARGIN_S if remaining_s is None else _limit(remaining_s)
        return await self._finished(self._unload(model, request, limit_s))

    async def _load(
        self, model: str, request: model_pb2.LoadAdapterRequest, wait_s: float
    ) -> model_pb2.LoadAdapterResponse:
        with await self.workers.acquire(model, wait_s) as lease:
            response = await call_worker(
                lease, f"{SERVICE}LoadAdapter", request, model_pb2.LoadAdapterResponse, LOAD_LIMIT_S
            )
        told = response.adapter
        self.desired.load(model, DesiredAdapter(told.adapter, request.source, told.pinned, told.revision))
        await self.desired.settle()
        return response

    async def _unload(
        self, model: CatalogueModel, request: model_pb2.UnloadAdapterRequest, limit_s: float
    ) -> model_pb2.UnloadAdapterResponse:
        with await self.workers.acquire(model.name, limit_s) as lease:
            try:
                response = await call_worker(
                    lease, f"{SERVICE}UnloadAdapter", request, model_pb2.UnloadAdapterResponse, limit_s
                )
            except WorkerRefusal as refusal:
                if refusal.status.code is grpc.StatusCode.NOT_FOUND and request.adapter in self.desired.of(model):
                    return await self._let_go(model, request.adapter)  # it has gone for others
                raise
        self.desired.unload(model.name, request.adapter)
        await self.desired.settle()
        return response

    async def _let_go(self, model: CatalogueModel, name: str) -> model_pb2.UnloadAdapterResponse:
        """Want an adapter no more that no worker has."""
        wanted = self.desired.of(model)
        if name not in wanted:
            raise AdapterNotFound(name, tuple(wanted))
        self.desired.unload(model.name, name)
        await self.desired.settle()
        known = await asyncio.to_thread(stored_adapters, model.adapters_folder)
        is_stored = (wanted[name].source or name) in known
        state = model_pb2.ADAPTER_STATE_AVAILABLE if is_stored else model_pb2.ADAPTER_STATE_UNSPECIFIED
        told = model_pb2.Adapter(adapter=name, model=model.name, state=state)
        return model_pb2.UnloadAdapterResponse(adapter=told)

    async def _stored(
        self, model: CatalogueModel, request: model_pb2.ListAdaptersRequest
    ) -> model_pb2.ListAdaptersResponse:
        known = await asyncio.to_thread(stored_adapters, model.adapters_folder)
        wanted = self.desired.of(model)
        is_loading = self._state(model) is ModelState.LOADING
        names = [name for name in sorted({*known, *wanted}) if name > request.page_token]
        page = names[: request.page_size or MAX_PAGE]
        return model_pb2.ListAdaptersResponse(
            adapters=[_view(model.name, name, wanted.get(name), known, is_loading=is_loading) for name in page],
            next_page_token=page[-1] if len(names) > len(page) else "",
        )

    def _resolve(self, name: str) -> CatalogueModel:
        if not name:
            raise MalformedRequest("it names no model")
        if not is_name(name):
            raise InvalidField((Violation("model", "is not the name of a model"),))
        return seen(self.catalogue, name)

    def _state(self, model: CatalogueModel) -> ModelState:
        return self.workers.state(model.name).state

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done to its end, whether or not the caller still waits."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_look_at)
        return await asyncio.shield(task)


def _view(
    model: str, name: str, wanted: DesiredAdapter | None, known: tuple[str, ...], *, is_loading: bool
) -> model_pb2.Adapter:
    """Return what is known of an adapter whose model is not loaded."""
    told = model_pb2.Adapter(adapter=name, model=model, state=model_pb2.ADAPTER_STATE_AVAILABLE)
    if wanted is None:
        return told
    told.pinned, told.revision = wanted.pinned, wanted.revision
    source = wanted.source or name
    if source not in known:
        told.state = model_pb2.ADAPTER_STATE_FAILED
        told.failure.CopyFrom(failure_of(AdapterNotFound(source, known)))
    elif is_loading:
        told.state = model_pb2.ADAPTER_STATE_LOADING
    return told


def _check_name(path: str, name: str) -> None:
    if not is_name(name):
        problem = "is not a name as models have them: letters, digits, '.', '_' and '-', with one '/' at most"
        raise InvalidField((Violation(path, problem),))


def _limit(remaining_s: float | None) -> float:
    """Return how long something may take for the caller to hear of it in time."""
    return MAX_WAIT_S if remaining_s is None else min(MAX_WAIT_S, max(0.0, remaining_s - MARGIN_S))


def _look_at(task: asyncio.Task[Any]) -> None:
    """Look at the outcome, which nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()
