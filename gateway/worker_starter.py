"""Turns a model of the catalogue into a running worker: its command, its environment, its settings."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pomona.v1 import model_pb2
from structlog.typing import FilteringBoundLogger

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.desired_adapters import DesiredAdapter, DesiredAdapters, latest
from gateway.lifecycle import Event
from gateway.load_options import in_effect
from gateway.memory import MachineMemory, machine_memory
from gateway.model_status import LoadOptions
from gateway.process import Command
from gateway.settings import Settings
from gateway.sockets import SocketFolder
from gateway.stop_ladder import StopLimits
from gateway.supervisor import Launch, Supervisor, longest_stop_s
from gateway.turn_table import TurnTable
from gateway.vitals import VitalLimits

PASSED_NAMES = frozenset({"PATH", "HOME", "LANG", "TMPDIR"})
PASSED_PREFIXES = ("LC_", "OPENBLAS_", "OMP_")


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker may see of this process's environment."""
    passed = {
        name: value for name, value in environment.items() if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
    }
    return passed | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class WorkerStarter:
    """Starts workers as the settings say.

    Attributes:
        catalogue: where models are.
        settings: returns what every worker is told now, and how long it may take.
        sockets: where workers listen.
        command: the worker's program and environment.
        log: takes the lines that workers print.
        memory: asks the system what there is.
        desired: the adapters that workers begin with.
        log_level: the least that a model's worker logs; None: what the settings say.
        turns: where workers take turns on their device; None: nowhere.
    """

    catalogue: Catalogue
    settings: Callable[[], Settings]
    sockets: SocketFolder
    command: Command
    log: FilteringBoundLogger
    memory: Callable[[], MachineMemory] = machine_memory
    desired: DesiredAdapters = field(default_factory=DesiredAdapters)
    log_level: Callable[[str], str] | None = None
    turns: TurnTable | None = None

    @property
    def longest_stop_s(self) -> float:
        """How long a worker can take to stop, in seconds."""
        return longest_stop_s(self._stop_limits())

    def start(self, model: str, options: LoadOptions, post: Callable[[Event], None]) -> Supervisor:
        """Start a worker for `model`; what happens to it goes to `post`."""
        entry = self.catalogue.resolve(model)
        adapters = self._adapters(entry)
        launch = Launch(
            model=model,
            command=self.command,
            settings={
                **worker_settings(entry, options, self.settings(), adapters),
                "budget_bytes": self.memory().budget_bytes,
                **({} if self.log_level is None else {"log_level": self.log_level(model)}),
            },
            sockets=self.sockets,
            vital_limits=self._vital_limits(),
            stop_limits=self._stop_limits(),
            turns=self.turns,
        )
        return Supervisor(launch, post, self.log.bind(model=model), time.monotonic)

    def _adapters(self, entry: CatalogueModel) -> list[DesiredAdapter]:
        wanted = list(self.desired.of(entry).values())
        told = latest(wanted)
        if len(told) < len(wanted):
            self.log.warning(
                "adapters not mounted: too many are wanted", model=entry.name, left_out=len(wanted) - len(told)
            )
        return told

    def _vital_limits(self) -> VitalLimits:
        told = self.settings().supervision
        return VitalLimits(
            handshake_s=told.handshake_s,
            heartbeat_s=told.heartbeat_s,
            suspect_after=told.suspect_after,
            lost_after=told.lost_after,
            load_stall_s=told.load_stall_s,
            compute_stall_s=told.compute_stall_s,
        )

    def _stop_limits(self) -> StopLimits:
        told = self.settings().supervision
        return StopLimits(shutdown_s=told.stop_grace_s, terminate_s=told.term_s, interrupt_s=told.dump_s)


def worker_settings(
    entry: CatalogueModel, options: LoadOptions, settings: Settings, adapters: Iterable[DesiredAdapter] = ()
) -> dict[str, Any]:
    """Return what the worker of a model is told, beside what differs with every start.

    Args:
        entry: the model.
        options: chosen for this load; None leaves what is configured.
        settings: of this server.
        adapters: that it begins with, in the order in which they are mounted.
    """
    held = in_effect(options, entry)
    return {
        "model": entry.name,
        "checkpoint": str(entry.checkpoint),
        "path": entry.path,
        "context_tokens": held.context_tokens,
        "max_batch_rows": held.max_batch_rows,
        "kv_scheme": held.kv_scheme,
        "kv_bytes": entry.kv_bytes,
        "experts": held.experts,
        "expert_budget": held.expert_budget,
        "expert_trace": None if entry.expert_trace is None else str(entry.expert_trace),
        "reasoning_marks": entry.reasoning_marks,
        "tool_dialect": entry.tool_dialect,
        "task": entry.task,
        "adapters_folder": None if entry.adapters_folder is None else str(entry.adapters_folder),
        "adapters_bytes": entry.adapters_bytes,
        "lazy_adapters": entry.lazy_adapters,
        "defaults": dict(entry.defaults),
        "adapters": [dict(one.told()) for one in adapters],
        "max_request_bytes": settings.grpc.max_request_bytes,
        "max_response_bytes": settings.grpc.max_response_bytes,
        "log_level": settings.logs.level,
        "cpu_kernels": settings.cpu_kernels,
        "allow_mlx_lm": settings.allow_mlx_lm,
        "gpu_turns": settings.turns.gpu_turns,
        **settings.worker.model_dump(mode="json"),
    }


def told_limits(settings: Settings) -> model_pb2.ModelLimits:
    """Return the limits that workers are told and say of every model they load."""
    limits = model_pb2.ModelLimits(
        max_queue_requests=settings.worker.max_queue_requests,
        max_request_bytes=settings.grpc.max_request_bytes,
        max_response_bytes=settings.grpc.max_response_bytes,
    )
    limits.max_audio_duration.FromNanoseconds(round(settings.worker.max_audio_s * 1e9))
    limits.default_idle_timeout.FromNanoseconds(round(settings.worker.audio_idle_s * 1e9))
    return limits
