"""What callers do to the models of the hub's cache: pull, delete, and have the catalogue read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from pomona.v1 import model_pb2

from gateway.admission import Admission
from gateway.caller_errors import ScopeMissing
from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import CheckpointCorrupt, CheckpointRejected, ModelInUse, ModelNotFound
from gateway.hub.cache import CachedModel, remove, repository_folder
from gateway.hub.messages import Order, Progress
from gateway.inventory import Inventory
from gateway.model_status import ModelState, WorkerPool
from gateway.principal import caller
from gateway.pulls import SKIPPED, Pulls
from gateway.request_errors import InvalidField, Violation
from gateway.services.views import view_of
from gateway.sight import names_seen, seen

SCOPE = "pull"
MENDABLE = (CheckpointRejected, CheckpointCorrupt)
# How attributes of an order are called in a request.
FIELDS = {"name": "model"}


@dataclass(frozen=True, slots=True)
class Stock:
    """The part of `pomona.v1.ModelService` that changes which models there are.

    Attributes:
        catalogue: which there are.
        workers: who has which.
        admission: says whether the server still takes work.
        inventory: writes the catalogue.
        pulls: that run.
        cache: folder of the hub's cache.
        refusal: why callers may neither pull nor delete; empty where they may.
    """

    catalogue: Catalogue
    workers: WorkerPool
    admission: Admission
    inventory: Inventory
    pulls: Pulls
    cache: Path
    refusal: str = ""
    _deleting: set[str] = field(default_factory=set[str])

    async def pull(self, request: model_pb2.PullModelRequest) -> AsyncGenerator[model_pb2.PullModelResponse]:
        """Yield how far a download is; the last message has the model as it now stands in the catalogue."""
        order = Order(request.repository, request.revision, request.model, request.file)
        self._check(order)
        total = 0
        async with aclosing(self.pulls.follow(order)) as all_progress:
            async for progress in all_progress:
                total = progress.bytes_total if progress.phase != SKIPPED else total
                yield _response(progress)
        yield _response(Progress("describing", bytes_done=total, bytes_total=total))
        model = seen(self.catalogue, order.model)
        view = await view_of(model, self.workers.state(model.name), self.catalogue)
        yield model_pb2.PullModelResponse(phase="done", bytes_done=total, bytes_total=total, model=view)

    async def delete(self, model: CatalogueModel) -> model_pb2.DeleteModelResponse:
        """Remove a model from the cache."""
        self._check_allowed()
        cached = self.inventory.cached(model.name)
        if cached is None:
            raise InvalidField((Violation("model", "is not of the hub's cache"),))
        self._check_unused(cached)
        if not self.inventory.take_out(model.name):
            raise ModelInUse(model.name, "loaded")
        self._deleting.add(cached.repository)
        try:
            freed_bytes = await asyncio.to_thread(remove, self.cache, cached)
        finally:
            self._deleting.discard(cached.repository)
            await self.inventory.refresh(with_settings=False)
        return model_pb2.DeleteModelResponse(freed_bytes=freed_bytes)

    async def refresh(self) -> model_pb2.RefreshCatalogueResponse:
        """Read settings and cache again, and forget which models could not be loaded that may be mended now.

        They are those whose settings changed, or whose checkpoint was at fault.
        """
        found = await self.inventory.refresh()
        for model in self.catalogue.models:
            status = self.workers.state(model.name)
            is_mended = model.name in found.changed or isinstance(status.failure, MENDABLE)
            if status.state is ModelState.FAILED and is_mended:
                await self.workers.unload(model.name, 0, is_forgotten=False)
        added, removed, changed = (
            names_seen(self.catalogue, names) for names in (found.added, found.removed, found.changed)
        )
        return model_pb2.RefreshCatalogueResponse(added=added, removed=removed, changed=changed)

    def _check(self, order: Order) -> None:
        self._check_allowed()
        self.admission.check_open()
        if problems := order.problems():
            raise InvalidField(tuple(Violation(FIELDS.get(name, name), words) for name, words in problems.items()))
        for name in (order.model, order.repository):  # a second name would be a way around the first
            caller().check_model(name, ())
        if order.repository in self._deleting:
            raise ModelInUse(order.repository, "being deleted")
        if not self._is_free(order):
            raise InvalidField((Violation("model", f"would be {order.model}, which is another model's name"),))

    def _check_allowed(self) -> None:
        if self.refusal:
            raise ScopeMissing(SCOPE, self.refusal)

    def _is_free(self, order: Order) -> bool:
        """Say whether a model may be called as an order wants it: nobody is, or the same repository's."""
        try:
            model = self.catalogue.resolve(order.model)
        except ModelNotFound:
            return True
        cached = self.inventory.cached(model.name)
        return cached is not None and cached.repository == order.repository

    def _check_unused(self, cached: CachedModel) -> None:
        """Refuse to delete what is being pulled, or what a worker reads under whatever name."""
        if self.pulls.is_pulling(cached.repository) or cached.repository in self._deleting:
            raise ModelInUse(cached.name, "being pulled or deleted")
        home = repository_folder(self.cache, cached.repository)
        for other in self.catalogue.models:
            if other.checkpoint.is_relative_to(home) and not self.workers.can_remove(other.name):
                raise ModelInUse(other.name, "loaded")


def _response(progress: Progress) -> model_pb2.PullModelResponse:
    return model_pb2.PullModelResponse(
        phase=progress.phase, file=progress.file, bytes_done=progress.bytes_done, bytes_total=progress.bytes_total
    )
