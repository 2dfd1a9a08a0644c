"""What a model would take of this machine, told from its headers alone: the one-shot `fit`, which imports no MLX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pomona.v1 import model_pb2

from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.fit import Fit, largest_context
from models.checkpoint.sizes import Computation
from models.checkpoint.slab_sizes import SlabSizes
from models.checkpoint.text_config import CONFIG_FILE
from models.embedding.embedder import for_vectors, read_embedder
from models.whisper.computation import whisper_computation
from models.whisper.config import Config
from models.whisper.fit import cache_bytes, whisper_fit
from models.whisper.folder import open_whisper
from worker import machine
from worker.embedding.task import task_of
from worker.errors import UnsupportedOption
from worker.expert_choice import ExpertsWish
from worker.fitting import fitting_options
from worker.kinds import is_speech
from worker.one_shot import print_answer
from worker.routed_experts import note_experts
from worker.settings import SettingsError, read_some
from worker.speech.bounds import DEFAULT_BYTES, SpeechBounds
from worker.text_fit import SETTINGS, TextFit, bounds_of, has_kernels, is_reference

BUDGET = "budget_bytes"
# The longest context that is looked for where the checkpoint does not bound it.
MAX_CONTEXT_TOKENS = 1 << 24


def main(argv: Sequence[str]) -> int:
    """Print what the checkpoint at `argv[0]` takes, an EstimateModelResponse: see `print_answer`."""
    return print_answer("fit", argv, lambda path, settings: estimate(path, *_settings(settings)))


def estimate(
    path: Path, settings: Mapping[str, Any], budget_bytes: int | None = None
) -> model_pb2.EstimateModelResponse:
    """Return what the checkpoint at `path` takes; whether that is free now is for others to say.

    Args:
        path: its folder or GGUF file.
        settings: of a worker, by name, some of `SETTINGS`; for others a worker's own defaults hold.
        budget_bytes: what there is; None: no end of it.

    Raises:
        CheckpointError: it is not there, corrupt, or nothing that this build runs.
        ModelLoadFailed: a worker with such settings would not load it.
        UnsupportedOption: a setting that such a model does not have.
    """
    if is_speech(path):
        return _speech(path, settings, budget_bytes)
    checkpoint = open_any(path, allow_mlx_lm=settings.get("allow_mlx_lm", False))
    if isinstance(checkpoint, TextCheckpoint):
        return _text(checkpoint, path, settings, budget_bytes)
    problem = "is computed by mlx-lm, and what its keys and values take is not told by headers"
    raise CheckpointRejected(problem, file=CONFIG_FILE, key="model_type")


def _settings(text: str) -> tuple[dict[str, Any], int | None]:
    """Return the settings of a worker that a JSON object holds, and the budget among them."""
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise SettingsError("the settings are not JSON") from error
    budget_bytes: int | None = None
    if isinstance(given, dict) and BUDGET in given:
        budget: object = cast("dict[str, Any]", given).pop(BUDGET)
        if type(budget) is not int or budget < 1:
            raise SettingsError(f"setting {BUDGET!r} has the wrong type or is out of range")
        budget_bytes = budget
    return read_some(json.dumps(given), SETTINGS), budget_bytes


def _text(
    checkpoint: TextCheckpoint, path: Path, settings: Mapping[str, Any], budget_bytes: int | None
) -> model_pb2.EstimateModelResponse:
    task = task_of(path, settings.get("task"))
    if task == "embed":
        checkpoint = for_vectors(checkpoint, read_embedder(checkpoint, path))
    model = TextFit.of(checkpoint, path, settings, task, budget_bytes)
    if model.sizes.experts is None:
        _refuse_experts(model.wish)
    trained = checkpoint.limits.max_position_embeddings
    context_tokens = model.bounds.context_tokens(trained)
    experts = model.experts(context_tokens)
    fit = model.fit(context_tokens, None if experts is None else experts.memory_bytes)
    response = _response(fit, model.computation, budget_bytes)
    response.largest_context_tokens = _largest(model.total_bytes, trained, budget_bytes)
    response.options.context_tokens = context_tokens
    response.options.max_batch_rows = model.bounds.fitting(context_tokens, model.sizes.kv).max_batch_rows
    response.options.kv_scheme = str(settings.get("kv_scheme", "none"))
    if experts is not None and model.sizes.experts is not None:
        response.estimate.all_experts_bytes = fit.all_experts_bytes
        note_experts(response.options, experts.mode, experts.budget_bytes)
        _note_slots(response.estimate, model.sizes.experts.slabs, experts.budget_bytes)
    if budget_bytes is not None and fit.total_bytes > budget_bytes:
        response.fitting_options.extend(fitting_options(model, context_tokens, trained or MAX_CONTEXT_TOKENS))
    return response


def _note_slots(estimate: model_pb2.MemoryEstimate, slabs: SlabSizes | None, budget_bytes: int) -> None:
    if slabs is not None:
        estimate.least_expert_budget_bytes = slabs.least
        estimate.total_experts = slabs.num_experts
        estimate.slab_experts = slabs.room(budget_bytes) if budget_bytes else 0


def _speech(path: Path, settings: Mapping[str, Any], budget_bytes: int | None) -> model_pb2.EstimateModelResponse:
    checkpoint = open_whisper(path)
    unset = {"context_tokens": (None, checkpoint.limits.max_position_embeddings), "kv_scheme": ("none",)}
    for name, values in unset.items():
        if settings.get(name, values[0]) not in values:
            raise UnsupportedOption(f"options.{name}", "a speech model hears windows of one length, in plain numbers")
    _refuse_experts(ExpertsWish.of(settings))
    computation = whisper_computation(
        checkpoint, machine.device(), has_kernels=has_kernels(settings), is_reference=is_reference(settings)
    )
    bounds = bounds_of(settings)
    row_bytes = cache_bytes(Config.from_checkpoint(checkpoint.config), computation.item_bytes)
    num_rows = SpeechBounds(bounds.max_batch_rows, bounds.kv_bytes or DEFAULT_BYTES).fitting(row_bytes)
    response = _response(whisper_fit(checkpoint, computation, num_rows), computation, budget_bytes)
    response.options.max_batch_rows = num_rows
    return response


def _refuse_experts(wish: ExpertsWish) -> None:
    """Refuse to be asked where experts lie that there are none of."""
    asked = {"options.experts_mode": wish.mode, "options.expert_budget_bytes": wish.budget_bytes}
    for name, value in asked.items():
        if value is not None:
            raise UnsupportedOption(name, "this model has no routed experts")


def _largest(total_bytes: Callable[[int], float], trained: int | None, budget_bytes: int | None) -> int:
    most = trained or MAX_CONTEXT_TOKENS
    return most if budget_bytes is None else largest_context(total_bytes, most, budget_bytes)


def _response(fit: Fit, computation: Computation, budget_bytes: int | None) -> model_pb2.EstimateModelResponse:
    return model_pb2.EstimateModelResponse(
        estimate=model_pb2.MemoryEstimate(
            weights_bytes=fit.weights_bytes,
            experts_bytes=fit.experts_bytes,
            kv_bytes=fit.kv_bytes,
            kv_row_bytes=fit.kv_row_bytes,
            kv_token_bytes=fit.kv_token_bytes,
            prefix_cache_bytes=fit.prefix_bytes,
            adapters_bytes=fit.adapters_bytes,
            transient_bytes=fit.transient_bytes,
            process_bytes=fit.process_bytes,
            total_bytes=fit.total_bytes,
            budget_bytes=budget_bytes or 0,
        ),
        device=computation.device,
        compute_dtype=computation.dtype_word,
    )
