"""What loading a model would take of this machine, and whether there is room for it: now, or once others are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel, stamp_of
from gateway.errors import LoadError
from gateway.ledger import Resident, victims_among
from gateway.load_options import following
from gateway.memory import MachineMemory, machine_memory
from gateway.model_status import LoadOptions, ModelState, ModelStatus, WorkerPool
from gateway.needs import Size
from gateway.one_shot import OneShot
from gateway.request_errors import UnsupportedOption

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
# Where headers do not tell what a model takes: of the size of its files, and beside that.
GUESSED_SHARE = 1.25
GUESSED_PROCESS_BYTES = 512 << 20
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
        is_idle: whether nobody waits for it, and it may go.
        last_used_s: when it last had a request, seconds since 1970.
        reserved_bytes: what it may take, where that is known.
    """

    model: str
    footprint_bytes: int
    is_idle: bool
    last_used_s: float = 0.0
    reserved_bytes: int = 0

    @property
    def promised_bytes(self) -> int:
        """What it has of the budget."""
        return self.reserved_bytes or self.footprint_bytes


def add_room(
    response: model_pb2.EstimateModelResponse, memory: MachineMemory, own_bytes: int = 0, others: Sequence[Held] = ()
) -> None:
    """Say in a response whether what it tells of fits: by the same rules as for loads.

    Args:
        response: with its estimate; it is changed.
        memory: of this machine.
        own_bytes: that the model has already, as it is loaded.
        others: models that are loaded too.
    """
    needed = response.estimate.total_bytes
    promised = {other.model: other.promised_bytes for other in others}
    short = needed - (memory.budget_bytes - sum(promised.values()))
    excess = 0 if memory.free_bytes is None else needed - memory.free_bytes - own_bytes
    response.fits_now = short <= 0 and excess <= 0
    if response.fits_now:
        response.fits_after_eviction = True
        return
    residents = [
        Resident(other.model, other.is_idle, last_used_s=other.last_used_s, footprint_bytes=other.footprint_bytes)
        for other in others
    ]
    response.would_evict[:] = victims_among(residents, promised, short, excess)
    response.fits_after_eviction = bool(response.would_evict)


def least_bytes(estimate: model_pb2.MemoryEstimate) -> int:
    """Return what a model takes with one request, its context whole, and nothing kept for later ones."""
    other_rows = max(0, estimate.kv_bytes - estimate.kv_row_bytes)
    return max(0, estimate.total_bytes - other_rows - estimate.prefix_cache_bytes)


@dataclass(frozen=True, slots=True)
class Fits:
    """What the headers of checkpoints say of memory.

    What they said last of a model is kept until its files or what was asked change: whoever asks whether it fits mostly
    loads it next, and a load asks once more.

    Attributes:
        catalogue: which models there are.
        one_shot: runs `fit`.
        settings: what a worker of a model would be told, with these options.
        memory: asks the system.
    """

    catalogue: Catalogue
    one_shot: OneShot
    settings: Callable[[CatalogueModel, LoadOptions], Mapping[str, Any]]
    memory: Callable[[], MachineMemory] = machine_memory
    _last: dict[str, tuple[object, model_pb2.EstimateModelResponse]] = field(
        default_factory=dict[str, tuple[object, model_pb2.EstimateModelResponse]]
    )

    async def read(self, model: CatalogueModel, chosen: LoadOptions) -> model_pb2.EstimateModelResponse:
        """Return what the headers say of a load with these options, for the caller to change.

        Raises:
            LoadError: its checkpoint cannot be read, or would not load with these options.
            UnsupportedOption: it does not have one of them.
        """
        told = told_settings(self.settings(model, chosen), self.memory().budget_bytes)
        asked = (model.checkpoint, await asyncio.to_thread(stamp_of, model.checkpoint), told)
        known = self._last.get(model.name)
        if known is None or known[0] != asked:
            said = await self.one_shot.ask(model.name, model.checkpoint, told, model_pb2.EstimateModelResponse())
            known = self._last[model.name] = (asked, said)
        response = model_pb2.EstimateModelResponse()
        response.CopyFrom(known[1])
        return response

    async def size(self, name: str, chosen: LoadOptions) -> Size:
        """Return what a load takes; where headers do not tell, a guess from the size of the files.

        Whether it can be loaded at all is for its worker to say: it says that best.

        Raises:
            ModelNotFound: the model is gone meanwhile.
        """
        model = self.catalogue.resolve(name)
        try:
            estimate = (await self.read(model, chosen)).estimate
            return Size(estimate.total_bytes, least_bytes(estimate))
        except (LoadError, UnsupportedOption):
            files = await asyncio.to_thread(stamp_of, model.checkpoint)
            guessed = GUESSED_PROCESS_BYTES + int(GUESSED_SHARE * sum(size for _, _, size in files))
            return Size(guessed, 0)


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates models of the catalogue.

    Attributes:
        workers: who has loaded which.
        fits: what headers say.
    """

    workers: WorkerPool
    fits: Fits

    async def estimate(self, model: CatalogueModel, options: LoadOptions) -> model_pb2.EstimateModelResponse:
        """Return what loading a model would take; options that are None are those in effect, else the configured.

        Raises:
            LoadError: its checkpoint cannot be read, or would not load with these options.
            UnsupportedOption: it does not have one of them.
        """
        chosen = following(self.workers.state(model.name).options, options, model)
        response = await self.fits.read(model, chosen)
        others = [_held(status) for status in self._loaded() if status.model != model.name]
        add_room(response, self.fits.memory(), _footprint(self.workers.state(model.name)), others)
        return response

    def _loaded(self) -> list[ModelStatus]:
        statuses = (self.workers.state(model.name) for model in self.fits.catalogue.models)
        return [status for status in statuses if status.worker is not None]


def _held(status: ModelStatus) -> Held:
    stats = status.stats
    is_busy = stats is None or stats.running_requests > 0 or stats.queued_requests > 0
    is_idle = status.state in _AT_REST and not is_busy and not status.pinned
    return Held(status.model, _footprint(status), is_idle, status.last_used_s or 0.0, status.reserved_bytes)


def _footprint(status: ModelStatus) -> int:
    return 0 if status.stats is None or status.worker is None else status.stats.memory.footprint_bytes
