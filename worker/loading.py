"""From the settings to a model that answers: what is loaded, and what is said of it."""

import logging
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from pomona.v1 import common_pb2, generation_pb2, model_pb2

from models import registry
from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.checkpoint.text_config import CONFIG_FILE
from models.checkpoint.tokenizer import TOKENIZER_FILE
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath, RowPlan, StepPlan
from native import kernels
from worker.abilities import Abilities, told_abilities
from worker.chunks import REFERENCE_CHUNK_TOKENS
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.tokens import constrained_tokens
from worker.describe import model_message
from worker.errors import ModelLoadFailed
from worker.prefix_settings import PrefixSettings
from worker.prompting import Prompter
from worker.sequence import SamplingSettings
from worker.served import ServedModel
from worker.settings import WorkerSettings
from worker.shortcuts import MAX_DRAFT_TOKENS
from worker.steerer import Steerer
from worker.templates import Template, TemplateRenderer
from worker.text_settings import TextSettings
from worker.validation import MAX_SEQUENCES, SAMPLING_RANGES, ModelFacts
from worker.workloads.text import TextWorkload

IMPLEMENTATION = "pomona"
# Guesses from the text so far, for requests that ask for them.
SPECULATION = "ngram"
# One token of a prompt, and one of output.
MIN_CONTEXT_TOKENS = 2

log = logging.getLogger(__name__)


def make_workload(settings: WorkerSettings, on_template: Callable[[Template], None]) -> TextWorkload:
    """Return the workload that loads and runs the model of the settings.

    Args:
        settings: of this worker.
        on_template: called on the engine's thread with the chat template, where there is one, before weights are read.
    """

    def load_model(report: Callable[[LoadProgress], None]) -> LoadedModel:
        report(LoadProgress("headers", 0, 0))
        checkpoint = open_any(Path(settings.checkpoint), allow_mlx_lm=settings.allow_mlx_lm)
        check_serves(checkpoint, settings.context_tokens)
        abilities = _abilities(checkpoint, settings)
        if (template := _template(checkpoint, abilities)) is not None:
            on_template(template)
        return load_model_of(checkpoint, settings, report)

    return TextWorkload(load_model, text_settings(settings))


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
        ModelLoadFailed: the settings ask for keys and values that nothing, or not this model, can keep.
    """
    folder = Path(settings.checkpoint) if checkpoint.format == "safetensors" else None
    try:
        scheme = KVScheme.from_text(settings.kv_scheme, folder=folder)
        loaded = registry.load(
            checkpoint, NumericPath(settings.path), report, cpu_kernels=settings.cpu_kernels, kv_scheme=scheme
        )
        _settle_kernels(loaded, settings)
        report(LoadProgress("warm-up", loaded.weights_bytes, loaded.weights_bytes))
        warm_up(loaded)
    except KVSchemeError as error:
        raise ModelLoadFailed(str(error), option=error.option) from error
    return loaded


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


def served_model(
    loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings, template: TemplateRenderer | None
) -> ServedModel:
    """Return what the services need of a loaded model."""
    abilities = _abilities(loaded.checkpoint, settings)
    described = model_message(loaded.checkpoint, abilities)
    facts = ModelFacts(
        vocab_size=int(loaded.checkpoint.config["vocab_size"]),
        max_context_tokens=max_context_tokens,
        sampling=_default_sampling(described.default_sampling),
        max_tokens=_default_max_tokens(described.default_stopping),
        # No more than may run and wait.
        max_sequences=min(MAX_SEQUENCES, settings.max_batch_rows + settings.max_queue_requests),
        # Guesses make steps of several tokens, whose last bits are not those of single ones there.
        max_draft_tokens=0 if loaded.path is NumericPath.REFERENCE else MAX_DRAFT_TOKENS,
        abilities=abilities,
    )
    prompter = Prompter(loaded.tokenizer, template, max_context_tokens, abilities)
    ends = loaded.checkpoint.eos_token_ids

    def make_compiler() -> GrammarCompiler:
        return GrammarCompiler(constrained_tokens(loaded.tokenizer, facts.vocab_size, ends))

    steerer = Steerer(abilities, loaded.tokenizer, make_compiler, facts.vocab_size, end_ids=frozenset(ends))
    resolved = common_pb2.ResolvedModel(
        model=settings.model, revision=loaded.checkpoint.revision, worker_instance_id=settings.instance_id
    )
    return ServedModel(prompter, steerer, facts, ends, resolved)


def loaded_message(loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings) -> model_pb2.Model:
    """Return the loaded model with its limits and how it runs."""
    message = model_message(loaded.checkpoint, _abilities(loaded.checkpoint, settings))
    note_runtime(message, loaded, max_context_tokens, settings)
    keeps_prefixes = loaded.shares_prefixes and loaded.path is not NumericPath.REFERENCE
    message.limits.max_output_tokens = max_context_tokens - 1
    # A sequence that others cannot begin behind cannot go back either, behind a guess that was wrong.
    message.runtime.speculation = SPECULATION if keeps_prefixes else ""
    message.generation.prefix_cache = settings.prefix_cache_bytes > 0 and keeps_prefixes
    return message


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


def _abilities(checkpoint: Checkpoint, settings: WorkerSettings) -> Abilities:
    return told_abilities(
        checkpoint.chat_template, reasoning_marks=settings.reasoning_marks, tool_dialect=settings.tool_dialect
    )


def _template(checkpoint: Checkpoint, abilities: Abilities) -> Template | None:
    if checkpoint.chat_template is None:
        return None
    tokenizer = checkpoint.tokenizer()
    tells_tail = abilities.marks is not None
    return Template(checkpoint.chat_template, tokenizer.bos_token, tokenizer.eos_token, tells_tail)


def _default_sampling(defaults: generation_pb2.SamplingParams) -> SamplingSettings:
    given = {field.name: value for field, value in defaults.ListFields() if field.name in SAMPLING_RANGES}
    return SamplingSettings(**given)


def _default_max_tokens(defaults: generation_pb2.StoppingParams) -> int | None:
    return defaults.max_tokens if defaults.HasField("max_tokens") else None
