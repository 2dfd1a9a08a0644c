"""From the settings to a model that answers: what is loaded, and what is said of it."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from pomona.v1 import common_pb2, generation_pb2, model_pb2

from models import registry
from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath, RowPlan, StepPlan
from worker.describe import model_message
from worker.prompting import Prompter
from worker.scheduler import REFERENCE_CHUNK_TOKENS
from worker.sequence import SamplingSettings
from worker.served import ServedModel
from worker.settings import WorkerSettings
from worker.templates import Template, TemplateRenderer
from worker.validation import SAMPLING_RANGES, ModelFacts
from worker.workloads.text import TextSettings, TextWorkload

IMPLEMENTATION = "pomona"


def make_workload(settings: WorkerSettings, on_template: Callable[[Template], None]) -> TextWorkload:
    """Return the workload that loads and runs the model of the settings.

    Args:
        settings: of this worker.
        on_template: called on the engine's thread with the chat template, where there is one, before weights are read.
    """

    def load_model(report: Callable[[LoadProgress], None]) -> LoadedModel:
        report(LoadProgress("headers", 0, 0))
        checkpoint = open_checkpoint(Path(settings.checkpoint))
        if (template := _template(checkpoint)) is not None:
            on_template(template)
        loaded = registry.load(checkpoint, NumericPath(settings.path), report)
        report(LoadProgress("warm-up", loaded.weights_bytes, loaded.weights_bytes))
        warm_up(loaded)
        return loaded

    bounds = TextSettings(
        max_batch_rows=settings.max_batch_rows,
        max_queue_requests=settings.max_queue_requests,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        max_context_tokens=settings.context_tokens,
    )
    return TextWorkload(load_model, bounds)


def warm_up(loaded: LoadedModel) -> None:
    """Compute one token in a cache of its own, so that the first request does not wait for what is done once."""
    step = loaded.model.make_cache(1).begin(StepPlan((RowPlan(0, (0,), 0, (0,)),)), None)
    logits = loaded.model.head(loaded.model.hidden(step))
    mx.eval(logits)  # pyright: ignore[reportUnknownMemberType]


def served_model(
    loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings, template: TemplateRenderer | None
) -> ServedModel:
    """Return what the services need of a loaded model."""
    described = model_message(loaded.checkpoint)
    facts = ModelFacts(
        vocab_size=int(loaded.checkpoint.config["vocab_size"]),
        max_context_tokens=max_context_tokens,
        sampling=_default_sampling(described.default_sampling),
        max_tokens=_default_max_tokens(described.default_stopping),
    )
    prompter = Prompter(loaded.tokenizer, template, max_context_tokens)
    resolved = common_pb2.ResolvedModel(
        model=settings.model, revision=loaded.checkpoint.revision, worker_instance_id=settings.instance_id
    )
    return ServedModel(prompter, facts, loaded.checkpoint.eos_token_ids, resolved)


def loaded_message(loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings) -> model_pb2.Model:
    """Return the loaded model with its limits and how it runs."""
    message = model_message(loaded.checkpoint)
    message.model = settings.model
    message.limits.max_context_tokens = max_context_tokens
    message.limits.max_output_tokens = max_context_tokens - 1
    message.limits.max_batch_rows = settings.max_batch_rows
    message.limits.max_queue_requests = settings.max_queue_requests
    message.limits.max_request_bytes = settings.max_request_bytes
    message.limits.max_response_bytes = settings.max_response_bytes
    message.runtime.options.context_tokens = max_context_tokens
    message.runtime.options.max_batch_rows = settings.max_batch_rows
    message.runtime.device = loaded.device
    message.runtime.compute_dtype = loaded.compute_dtype
    message.runtime.implementation = IMPLEMENTATION
    message.runtime.path = loaded.path.value
    is_reference = loaded.path is NumericPath.REFERENCE
    message.runtime.prefill_chunk_tokens = REFERENCE_CHUNK_TOKENS if is_reference else settings.prefill_chunk_tokens
    message.memory.weights_bytes = loaded.weights_bytes
    return message


def _template(checkpoint: Checkpoint) -> Template | None:
    if checkpoint.chat_template is None:
        return None
    tokenizer = checkpoint.tokenizer()
    return Template(checkpoint.chat_template, tokenizer.bos_token, tokenizer.eos_token)


def _default_sampling(defaults: generation_pb2.SamplingParams) -> SamplingSettings:
    given = {field.name: value for field, value in defaults.ListFields() if field.name in SAMPLING_RANGES}
    return SamplingSettings(**given)


def _default_max_tokens(defaults: generation_pb2.StoppingParams) -> int | None:
    return defaults.max_tokens if defaults.HasField("max_tokens") else None
