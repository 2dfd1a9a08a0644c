"""From the settings to a model that answers: what is loaded, and what is said of it."""

from collections.abc import Callable
from pathlib import Path

from pomona.v1 import common_pb2, generation_pb2, model_pb2

from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import Checkpoint
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath
from worker.abilities import Abilities, told_abilities
from worker.adapters.adapters import Adapters
from worker.adapters.wanted import MAX_ADAPTERS
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.tokens import constrained_tokens
from worker.defaults import note_defaults
from worker.describe import model_message
from worker.model_loading import check_serves, load_model_of, note_runtime, text_settings
from worker.prompting import Prompter
from worker.sequence import SamplingSettings
from worker.served import ServedModel
from worker.settings import WorkerSettings
from worker.shortcuts import MAX_DRAFT_TOKENS
from worker.steerer import Steerer
from worker.templates import Template, TemplateRenderer
from worker.validation import MAX_SEQUENCES, SAMPLING_RANGES, ModelFacts
from worker.workloads.text import TextWorkload

# Guesses from the text so far, for requests that ask for them.
SPECULATION = "ngram"
# Of the defaults, those of a draw; the seed is the request's.
DRAWN = frozenset({*SAMPLING_RANGES, "penalty_window"})


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


def served_model(
    loaded: LoadedModel,
    max_context_tokens: int,
    settings: WorkerSettings,
    template: TemplateRenderer | None,
    adapters: Adapters | None = None,
) -> ServedModel:
    """Return what the services need of a loaded model."""
    abilities = _abilities(loaded.checkpoint, settings)
    described = model_message(loaded.checkpoint, abilities)
    note_defaults(described, settings.defaults or {})
    facts = ModelFacts(
        vocab_size=int(loaded.checkpoint.config["vocab_size"]),
        max_context_tokens=max_context_tokens,
        sampling=_default_sampling(described.default_sampling),
        max_tokens=_default_max_tokens(described.default_stopping),
        seed=(settings.defaults or {}).get("seed"),
        # No more than may run and wait.
        max_sequences=min(MAX_SEQUENCES, settings.max_batch_rows + settings.max_queue_requests),
        # Guesses make steps of several tokens, whose last bits are not those of single ones there.
        max_draft_tokens=MAX_DRAFT_TOKENS if _guesses(loaded) else 0,
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
    return ServedModel(prompter, steerer, facts, ends, resolved, adapters if loaded.adapters is not None else None)


def loaded_message(loaded: LoadedModel, max_context_tokens: int, settings: WorkerSettings) -> model_pb2.Model:
    """Return the loaded model with its limits and how it runs."""
    message = model_message(loaded.checkpoint, _abilities(loaded.checkpoint, settings))
    note_defaults(message, settings.defaults or {})
    note_runtime(message, loaded, max_context_tokens, settings)
    keeps_prefixes = loaded.shares_prefixes and loaded.path is not NumericPath.REFERENCE
    message.limits.max_output_tokens = max_context_tokens - 1
    message.limits.max_adapters = MAX_ADAPTERS if loaded.adapters is not None else 0
    fitting = text_settings(settings).fitting(max_context_tokens, loaded.kv_sizes)
    message.limits.max_batch_rows = message.runtime.options.max_batch_rows = fitting.max_batch_rows
    message.runtime.speculation = SPECULATION if _guesses(loaded) else ""
    message.generation.prefix_cache = settings.prefix_cache_bytes > 0 and keeps_prefixes
    return message


def _guesses(loaded: LoadedModel) -> bool:
    """Tell whether tokens are guessed: behind a guess that was wrong, a sequence has to go back."""
    return loaded.can_go_back and loaded.path is not NumericPath.REFERENCE


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
    given = {field.name: value for field, value in defaults.ListFields() if field.name in DRAWN}
    return SamplingSettings(**given)


def _default_max_tokens(defaults: generation_pb2.StoppingParams) -> int | None:
    return defaults.max_tokens if defaults.HasField("max_tokens") else None
