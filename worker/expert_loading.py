"""From the settings to how a load holds routed experts."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint
from models.checkpoint.routed_experts import routed_experts
from models.experts.options import ExpertsMode, ExpertsOptions
from worker.embedding.task import task_of
from worker.errors import ModelExceedsMemory, ModelLoadFailed
from worker.expert_choice import ExpertsWish
from worker.settings import WorkerSettings
from worker.text_fit import SETTINGS, TextFit

# Beside the checkpoint, as a pack is.
USAGE_FILE = "experts.usage"


def expert_options(checkpoint: Checkpoint, settings: WorkerSettings) -> ExpertsOptions:
    """Return how routed experts are held; for a model without any, that they are resident.

    Args:
        checkpoint: its headers.
        settings: of the worker.

    Raises:
        ModelLoadFailed: the settings ask for what this model cannot have.
        ModelExceedsMemory: it takes more memory than there is.
    """
    if not isinstance(checkpoint, TextCheckpoint):
        return _none(settings, "mlx-lm computes this model, with all of it in memory")
    if routed_experts(checkpoint) is None:
        return _none(settings, "this model has no routed experts")
    given = {name: getattr(settings, name) for name in SETTINGS}
    path = Path(settings.checkpoint)
    model = TextFit.of(checkpoint, path, given, task_of(path, settings.task), settings.budget_bytes)
    context_tokens = model.bounds.context_tokens(checkpoint.limits.max_position_embeddings)
    choice = model.experts(context_tokens)
    if choice is None:
        return ExpertsOptions()
    if choice.mode is not ExpertsMode.SLAB or settings.expert_budget is None:
        fit = model.fit(context_tokens, choice.memory_bytes)
        certain_bytes = fit.weights_bytes + fit.experts_bytes + fit.process_bytes
        _check_room(choice.mode, certain_bytes, settings.budget_bytes)
    return ExpertsOptions(
        mode=choice.mode,
        budget_bytes=choice.budget_bytes or None,
        usage_file=path / USAGE_FILE if choice.mode is ExpertsMode.SLAB else None,
        reason=choice.reason,
        trace_file=None if settings.expert_trace is None else Path(settings.expert_trace),
    )


def _check_room(mode: ExpertsMode, certain_bytes: int, budget_bytes: int | None) -> None:
    """Refuse a model that is over what there is with its weights alone: a system that runs out kills, and says little.

    Whoever sets a budget of slabs has weighed that: it holds, whatever share of the machine models may take.

    Args:
        mode: where experts lie.
        certain_bytes: what the model takes before its first request.
        budget_bytes: what models may take of this machine; None: no end of it.
    """
    if budget_bytes is not None and certain_bytes > budget_bytes:
        words = "; --experts slab has fewer of them in memory" if mode is ExpertsMode.RESIDENT else ""
        problem = (
            f"with its experts {mode.value} it takes {certain_bytes} bytes of the {budget_bytes} for models{words}"
        )
        raise ModelExceedsMemory(problem, certain_bytes, budget_bytes, option="experts")


def _none(settings: WorkerSettings, reason: str) -> ExpertsOptions:
    ExpertsWish.of({"experts": settings.experts, "expert_budget": settings.expert_budget}).check_none(reason)
    if settings.expert_trace is not None:
        raise ModelLoadFailed(f"expert_trace is set, and {reason}", option="expert_trace")
    return ExpertsOptions()
