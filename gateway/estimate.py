"""What loading a model would take of this machine, and whether there is room for it: now, or once others are gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel, stamp_of
from gateway.load_options import following
from gateway.memory import MachineMemory, machine_memory
from gateway.model_status import LoadOptions, ModelState, ModelStatus, WorkerPool
from gateway.one_shot import OneShot

BUDGET = "budget_bytes"
# Of a worker's settings, those that decide what it takes.
TOLD = (
    "path",
    "context_tokens",
    "max_batch_rows",
    "prefill_chunk_tokens",
    "kv_scheme",
    "kv_bytes",
    "prefix_cache_bytes",
    "experts",
    "expert_budget",
    "cpu_kernels",
    "task",
    "allow_mlx_lm",
    "adapters_folder",
    "adapters_bytes",
)
# Whose workers could be ended for another's sake.
_AT_REST = frozenset({ModelState.ACTIVE, ModelState.DEGRADED})


def told_settings(settings: Mapping[str, Any], budget_bytes: int) -> dict[str, Any]:
    """Return what a one-shot `fit` is told: some of a worker's settings, and what there is of memory."""
    told = {name: settings[name] for name in TOLD if settings.get(name) is not None}
    return {**told, BUDGET: budget_bytes}


@dataclass(frozen=True, slots=True)
class Held:
    """What one loaded model has of the machine.

    Attributes:
        model: its name.
        footprint_bytes: of its process.
        is_idle: whether nobody waits for it.
        last_used_s: when it last had a request, seconds since 1970.
    """

    model: str
    footprint_bytes: int
    is_idle: bool
    last_used_s: float = 0.0


def add_room(
    response: model_pb2.EstimateModelResponse, memory: MachineMemory, own_bytes: int = 0, others: Sequence[Held] = ()
) -> None:
    """Say in a response whether what it tells of fits.

    Args:
        response: with its estimate; it is changed.
        memory: of this machine.
        own_bytes: that the model has already, as it is loaded.
        others: models that are loaded too.
    """
    needed = response.estimate.total_bytes
    in_budget = memory.budget_bytes - sum(other.footprint_bytes for other in others)
    free = sys.maxsize if memory.free_bytes is None else memory.free_bytes + own_bytes
    room = min(in_budget, free)
    response.fits_now = needed <= room
    evicted: list[str] = []
    for other in sorted((other for other in others if other.is_idle), key=lambda other: other.last_used_s):
        if needed <= room:
            break
        room += other.footprint_bytes
        evicted.append(other.model)
    response.fits_after_eviction = needed <= room
    if needed <= room:
        response.would_evict[:] = evicted


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates models of the catalogue.

    What the headers said last of a model is kept until its files or what was asked change: whoever asks whether it fits
    mostly loads it next, and a load asks once more.

    Attributes:
        catalogue: which models there are.
        workers: who has loaded which.
        one_shot: runs `fit`.
        settings: what a worker of a model would be told, with these options.
        memory: asks the system.
    """

    catalogue: Catalogue
    workers: WorkerPool
    one_shot: OneShot
    settings: Callable[[CatalogueModel, LoadOptions], Mapping[str, Any]]
    memory: Callable[[], MachineMemory] = machine_memory
    _last: dict[str, tuple[object, model_pb2.EstimateModelResponse]] = field(
        default_factory=dict[str, tuple[object, model_pb2.EstimateModelResponse]]
    )

    async def estimate(self, model: CatalogueModel, options: LoadOptions) -> model_pb2.EstimateModelResponse:
        """Return what loading a model would take; options that are None are those in effect, else the configured.

        Raises:
            LoadError: its checkpoint cannot be read, or would not load with these options.
            UnsupportedOption: it does not have one of them.
        """
        memory = self.memory()
        chosen = following(self.workers.state(model.name).options, options, model)
        told = told_settings(self.settings(model, chosen), memory.budget_bytes)
        response = await self._read(model, told)
        others = [_held(status) for status in self._loaded() if status.model != model.name]
        add_room(response, memory, _footprint(self.workers.state(model.name)), others)
        return response

    async def _read(self, model: CatalogueModel, told: Mapping[str, Any]) -> model_pb2.EstimateModelResponse:
        """Return what the headers say, for the caller to change."""
        asked = (model.checkpoint, await asyncio.to_thread(stamp_of, model.checkpoint), told)
        known = self._last.get(model.name)
        if known is None or known[0] != asked:
            said = await self.one_shot.ask(model.name, model.checkpoint, told, model_pb2.EstimateModelResponse())
            known = self._last[model.name] = (asked, said)
        response = model_pb2.EstimateModelResponse()
        response.CopyFrom(known[1])
        return response

    def _loaded(self) -> list[ModelStatus]:
        statuses = (self.workers.state(model.name) for model in self.catalogue.models)
        return [status for status in statuses if status.worker is not None]


def _held(status: ModelStatus) -> Held:
    stats = status.stats
    is_busy = stats is None or stats.running_requests > 0 or stats.queued_requests > 0
    is_idle = status.state in _AT_REST and not is_busy
    return Held(status.model, _footprint(status), is_idle, status.last_used_s or 0.0)


def _footprint(status: ModelStatus) -> int:
    return 0 if status.stats is None or status.worker is None else status.stats.memory.footprint_bytes
