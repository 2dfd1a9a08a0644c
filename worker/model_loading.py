"""From the settings to a model of text in memory, whatever it is for: its bounds, its weights, and how it runs."""

import logging
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from pomona.v1 import model_pb2

from models import registry
from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.checkpoint.text_config import CONFIG_FILE
from models.checkpoint.tokenizer import TOKENIZER_FILE
from models.errors import SlotsTooFew
from models.experts.errors import MappingUnavailable, SlabsUnavailable, TraceUnwritable
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath, RowPlan, StepPlan
from native import kernels
from worker.chunks import REFERENCE_CHUNK_TOKENS
from worker.errors import ModelLoadFailed
from worker.expert_choice import budget_too_small
from worker.expert_loading import expert_options
from worker.lost_pages import tell_lost_pages
from worker.prefix_settings import PrefixSettings
from worker.routed_experts import note_experts
from worker.settings import WorkerSettings
from worker.text_settings import TextSettings

# One token of a prompt, and one of output.
MIN_CONTEXT_TOKENS = 2

log = logging.getLogger(__name__)


def text_settings(settings: WorkerSettings) -> TextSettings:
    """Return the bounds of the workload."""
    folder = settings.prefix_cache_folder
    return TextSettings(
        max_batch_rows=settings.max_batch_rows,
        max_queue_requests=settings.max_queue_requests,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        prefill_gap_s=settings.prefill_gap_s,
        max_context_tokens=settings.context_tokens,
        kv_bytes=settings.kv_bytes,
        prefixes=PrefixSettings(
            max_bytes=settings.prefix_cache_bytes,
            folder=None if folder is None else Path(folder),
            folder_max_bytes=settings.prefix_cache_folder_bytes,
        ),
    )


def load_model_of(
    checkpoint: Checkpoint, settings: WorkerSettings, report: Callable[[LoadProgress], None]
) -> LoadedModel:
    """Read the weights and compute with them once.

    Raises:
        CheckpointError: they cannot be read.
        ModelLoadFailed: the settings ask for keys and values that nothing, or not this model, can keep, or have its
            experts where they cannot lie.
    """
    folder = Path(settings.checkpoint) if checkpoint.format == "safetensors" else None
    tell_lost_pages()
    try:
        scheme = KVScheme.from_text(settings.kv_scheme, folder=folder)
        loaded = _read(checkpoint, settings, scheme, report)
        _settle_kernels(loaded, settings)
        report(LoadProgress("warm-up", loaded.weights_bytes, loaded.weights_bytes))
        warm_up(loaded)
        if loaded.experts is not None:
            loaded.experts.forget()
    except KVSchemeError as error:
        raise ModelLoadFailed(str(error), option=error.option) from error
    return loaded


def _read(
    checkpoint: Checkpoint, settings: WorkerSettings, scheme: KVScheme, report: Callable[[LoadProgress], None]
) -> LoadedModel:
    """Read the weights, with routed experts held as the settings say or the memory allows."""
    try:
        return registry.load(
            checkpoint,
            NumericPath(settings.path),
            report,
            cpu_kernels=settings.cpu_kernels,
            kv_scheme=scheme,
            experts=expert_options(checkpoint, settings),
        )
    except SlotsTooFew as error:
        raise budget_too_small(settings.expert_budget, error.least_bytes) from error
    except (MappingUnavailable, SlabsUnavailable) as error:
        raise ModelLoadFailed(str(error), option="experts") from error
    except TraceUnwritable as error:
        facts = {"file": settings.expert_trace, "problem": str(error)}
        log.error("expert_trace is of no use", extra=facts)  # noqa: TRY400 - the trace tells no more
        raise ModelLoadFailed(str(error), option="expert_trace") from error


def _settle_kernels(loaded: LoadedModel, settings: WorkerSettings) -> None:
    """Give the kernels their threads, and say which compute."""
    if loaded.arithmetic.name == "native":
        if settings.compute_threads is not None:
            kernels.set_threads(settings.compute_threads)
        facts = {"instructions": kernels.instruction_set(), "threads": kernels.threads()}
        log.info("native kernels compute", extra=facts)
    elif loaded.device == "cpu" and loaded.path is NumericPath.FAST:
        why = "this install has none that run" if settings.cpu_kernels else "cpu_kernels is off"
        log.warning("MLX computes everything, without native kernels: %s", why)


def check_serves(checkpoint: Checkpoint, context_tokens: int | None) -> None:
    """Refuse a checkpoint that could be loaded and still not answer.

    Args:
        checkpoint: its headers.
        context_tokens: what the settings allow; None: what the checkpoint does.

    Raises:
        CheckpointRejected: its tokenizer has tokens that the model has not, or its context has no room for output.
        ModelLoadFailed: the context of the settings has none.
    """
    vocab_size, num_tokens = int(checkpoint.config["vocab_size"]), checkpoint.tokenizer().vocab_size
    is_folder = checkpoint.format == "safetensors"
    if num_tokens > vocab_size:
        file = TOKENIZER_FILE if is_folder else checkpoint.name
        raise CheckpointRejected(f"has token {num_tokens - 1}; the model's tokens are below {vocab_size}", file=file)
    trained = checkpoint.limits.max_position_embeddings
    if trained is not None and trained < MIN_CONTEXT_TOKENS:
        file = CONFIG_FILE if is_folder else checkpoint.name
        raise CheckpointRejected("leaves no room for output", file=file, key="max_position_embeddings")
    if context_tokens is not None and context_tokens < MIN_CONTEXT_TOKENS:
        raise ModelLoadFailed(f"context_tokens is {context_tokens}, which leaves no room for output")


def warm_up(loaded: LoadedModel) -> None:
    """Compute two tokens in a cache of its own, so that the first request does not wait for what is done once.

    Raises:
        CheckpointCorrupt: what comes out is no number, so that every request would fail.
        KVSchemeError: its layers cannot keep keys and values as asked.
    """
    step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (0, 0), 0, (1,)),)), None)
    logits = loaded.model.head(loaded.model.hidden(step))
    if not mx.isfinite(logits).all().item():
        raise CheckpointCorrupt("computes values that are no numbers", file=loaded.checkpoint.name)


def note_runtime(
    message: model_pb2.Model, loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings
) -> None:
    """Write into a model's message what any kind of text model is bounded by, and how it runs."""
    message.model = settings.model
    message.limits.max_context_tokens = max_context_tokens
    message.limits.max_batch_rows = settings.max_batch_rows
    message.limits.max_queue_requests = settings.max_queue_requests
    message.limits.max_request_bytes = settings.max_request_bytes
    message.limits.max_response_bytes = settings.max_response_bytes
    message.runtime.options.context_tokens = max_context_tokens
    message.runtime.options.max_batch_rows = settings.max_batch_rows
    message.runtime.options.kv_scheme = settings.kv_scheme
    message.runtime.device = loaded.device
    message.runtime.compute_dtype = loaded.compute_dtype
    message.runtime.implementation = loaded.implementation
    message.runtime.path = loaded.path.value
    is_reference = loaded.path is NumericPath.REFERENCE
    message.runtime.prefill_chunk_tokens = REFERENCE_CHUNK_TOKENS if is_reference else settings.prefill_chunk_tokens
    message.memory.weights_bytes = loaded.weights_bytes
    if loaded.experts is not None:
        message.memory.weights_bytes -= loaded.experts.resident_bytes
        message.memory.resident_expert_bytes = loaded.experts.resident_bytes
        note_experts(message.runtime.options, loaded.experts.mode, loaded.experts.budget_bytes)
