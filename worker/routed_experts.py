"""What is said of a model's routed experts: in its description, in its options and in its heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from pomona.v1 import model_pb2

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.routed_experts import routed_experts
from models.errors import ExpertUnreadable
from models.experts.account import HeldExperts
from models.experts.options import ExpertsMode
from models.experts.pack import PACK_FILE
from worker.errors import CheckpointCorrupt

_log = logging.getLogger(__name__)

_MODES: Mapping[ExpertsMode, model_pb2.ExpertsMode.ValueType] = {
    ExpertsMode.RESIDENT: model_pb2.EXPERTS_MODE_RESIDENT,
    ExpertsMode.MAPPED: model_pb2.EXPERTS_MODE_MAPPED,
    ExpertsMode.SLAB: model_pb2.EXPERTS_MODE_SLAB,
}


class ExpertCounts(TypedDict, total=False):
    """What of `Counts` tells of experts; nothing for a model without any."""

    expert_slab_bytes: int
    mapped_expert_bytes: int
    expert_hit_ratio: float
    expert_bytes_read_total: int
    expert_stall_us_total: int


def experts_message(checkpoint: Checkpoint) -> model_pb2.RoutedExperts | None:
    """Return what the headers say of routed experts; None: there are none."""
    found = routed_experts(checkpoint)
    if found is None:
        return None
    return model_pb2.RoutedExperts(
        layers=found.num_layers,
        experts_per_layer=found.num_experts,
        experts_per_token=found.num_chosen,
        stored_bytes=found.stored_bytes,
        is_packed=(_folder(checkpoint) / PACK_FILE).exists(),
    )


def note_experts(options: model_pb2.LoadOptions, mode: ExpertsMode, budget_bytes: int) -> None:
    """Write into options where experts lie, and what slabs may take."""
    options.experts_mode = _MODES[mode]
    if mode is ExpertsMode.SLAB:
        options.expert_budget_bytes = budget_bytes


def expert_counts(held: HeldExperts | None) -> ExpertCounts:
    """Return what a heartbeat tells of experts; any thread may ask."""
    if held is None:
        return {}
    return {
        "expert_slab_bytes": held.slab_bytes,
        "mapped_expert_bytes": held.mapped_bytes,
        "expert_hit_ratio": held.account.hit_ratio if held.mode is ExpertsMode.SLAB else 0.0,
        "expert_bytes_read_total": held.account.bytes_read_total,
        "expert_stall_us_total": held.account.stall_us_total,
    }


def unreadable(error: ExpertUnreadable) -> CheckpointCorrupt:
    """Log that a step could not have its experts, and return what its requests are told."""
    facts = {"file": error.file, "experts": error.module, "expert": error.expert, "code": error.code}
    _log.error("experts cannot be read", extra=facts)
    return CheckpointCorrupt(str(error), file=error.file, key=error.module)


def _folder(checkpoint: Checkpoint) -> Path:
    return next(iter(checkpoint.tensors.values())).file.parent
