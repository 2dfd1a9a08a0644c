"""What a model would take of this machine, told from its headers alone: the one-shot `fit`, which imports no MLX."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pomona.v1 import model_pb2

from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.fit import Fit, Run, TextSizes, largest_context
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.checkpoint.sizes import Computation
from models.checkpoint.text_config import CONFIG_FILE
from models.embedding.embedder import for_vectors, read_embedder
from models.whisper.computation import whisper_computation
from models.whisper.config import Config
from models.whisper.fit import cache_bytes, whisper_fit
from models.whisper.folder import open_whisper
from worker import machine
from worker.chunks import REFERENCE_CHUNK_TOKENS
from worker.embedding.task import TextTask, task_of
from worker.embedding.turns import NUM_SLOTS, SHORT_STEPS
from worker.errors import ModelLoadFailed, UnsupportedOption
from worker.kinds import is_speech
from worker.one_shot import print_answer
from worker.prefix_settings import PrefixSettings
from worker.settings import SettingsError, read_some
from worker.speech.bounds import DEFAULT_BYTES, SpeechBounds
from worker.text_settings import TextSettings

# Of a worker, those that decide what it takes.
SETTINGS = (
    "path",
    "context_tokens",
    "max_batch_rows",
    "prefill_chunk_tokens",
    "kv_scheme",
    "kv_bytes",
    "prefix_cache_bytes",
    "cpu_kernels",
    "task",
    "allow_mlx_lm",
)
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


@dataclass(frozen=True, slots=True)
class _TextModel:
    """A text model whose context is still open.

    Attributes:
        bounds: of its workload.
        sizes: what it takes.
        task: what it is for.
        is_reference: whether it runs on the reference path.
    """

    bounds: TextSettings
    sizes: TextSizes
    task: TextTask
    is_reference: bool

    def fit(self, context_tokens: int) -> Fit:
        """Return what it takes with such a context; raises as a load that fails."""
        bounds, is_reference = self.bounds, self.is_reference
        run = Run(
            context_tokens=context_tokens,
            num_rows=bounds.max_batch_rows,
            num_logits=bounds.max_batch_rows,
            kv_tokens=bounds.kv_tokens(context_tokens, self.sizes.kv.rows_bytes),
            chunk_tokens=REFERENCE_CHUNK_TOKENS if is_reference else bounds.prefill_chunk_tokens,
            prefix_bytes=0 if is_reference else bounds.prefixes.max_bytes,
        )
        if self.task != "generate":
            kv_tokens = run.kv_tokens + SHORT_STEPS * run.chunk_tokens
            num_logits = run.num_rows if self.task == "rerank" else 0
            run = replace(run, num_rows=NUM_SLOTS, num_logits=num_logits, kv_tokens=kv_tokens, prefix_bytes=0)
        return self.sizes.fit(run)

    def total_bytes(self, context_tokens: int) -> float:
        """Return what it takes in all; no end of it where it would not load."""
        try:
            return self.fit(context_tokens).total_bytes
        except ModelLoadFailed:
            return math.inf


def _text(
    checkpoint: TextCheckpoint, path: Path, settings: Mapping[str, Any], budget_bytes: int | None
) -> model_pb2.EstimateModelResponse:
    asked, task = str(settings.get("kv_scheme", "none")), task_of(path, settings.get("task"))
    if task == "embed":
        checkpoint = for_vectors(checkpoint, read_embedder(checkpoint, path))
    computation = Computation.of(
        checkpoint, machine.device(), has_kernels=_has_kernels(settings), is_reference=_is_reference(settings)
    )
    trained = checkpoint.limits.max_position_embeddings
    try:
        scheme = KVScheme.from_text(asked, folder=path if checkpoint.format == "safetensors" else None)
        sizes = TextSizes(checkpoint, computation, scheme)
        model = _TextModel(_bounds(settings), sizes, task, computation.is_reference)
        context_tokens = model.bounds.context_tokens(trained)
        fit = model.fit(context_tokens)
    except KVSchemeError as error:
        raise ModelLoadFailed(str(error), option=error.option) from error
    response = _response(fit, computation, budget_bytes)
    response.largest_context_tokens = _largest(model.total_bytes, trained, budget_bytes)
    response.options.context_tokens = context_tokens
    response.options.max_batch_rows = model.bounds.max_batch_rows
    response.options.kv_scheme = asked
    return response


def _speech(path: Path, settings: Mapping[str, Any], budget_bytes: int | None) -> model_pb2.EstimateModelResponse:
    checkpoint = open_whisper(path)
    unset = {"context_tokens": (None, checkpoint.limits.max_position_embeddings), "kv_scheme": ("none",)}
    for name, values in unset.items():
        if settings.get(name, values[0]) not in values:
            raise UnsupportedOption(f"options.{name}", "a speech model hears windows of one length, in plain numbers")
    computation = whisper_computation(
        checkpoint, machine.device(), has_kernels=_has_kernels(settings), is_reference=_is_reference(settings)
    )
    bounds = _bounds(settings)
    row_bytes = cache_bytes(Config.from_checkpoint(checkpoint.config), computation.item_bytes)
    num_rows = SpeechBounds(bounds.max_batch_rows, bounds.kv_bytes or DEFAULT_BYTES).fitting(row_bytes)
    response = _response(whisper_fit(checkpoint, computation, num_rows), computation, budget_bytes)
    response.options.max_batch_rows = num_rows
    return response


def _has_kernels(settings: Mapping[str, Any]) -> bool:
    return machine.has_kernels() and settings.get("cpu_kernels", True)


def _is_reference(settings: Mapping[str, Any]) -> bool:
    return settings.get("path") == "reference"


def _bounds(settings: Mapping[str, Any]) -> TextSettings:
    """Return the bounds of a workload with such settings, as `worker.model_loading.text_settings` does."""
    names = {"max_batch_rows", "prefill_chunk_tokens", "kv_bytes"}
    given = {name: value for name, value in settings.items() if name in names}
    if "prefix_cache_bytes" in settings:
        given["prefixes"] = PrefixSettings(max_bytes=settings["prefix_cache_bytes"])
    return TextSettings(max_context_tokens=settings.get("context_tokens"), **given)


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
            transient_bytes=fit.transient_bytes,
            process_bytes=fit.process_bytes,
            total_bytes=fit.total_bytes,
            budget_bytes=budget_bytes or 0,
        ),
        device=computation.device,
        compute_dtype=computation.dtype_word,
    )
