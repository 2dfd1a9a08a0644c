"""What a checkpoint is and can do, told from its headers alone: the one-shot `describe`, which imports no MLX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pomona.v1 import generation_pb2, model_pb2

from models.borrowed.checkpoint import open_any
from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint, open_checkpoint
from models.checkpoint.config import GENERATION_CONFIG_FILE
from models.checkpoint.errors import CheckpointRejected
from models.whisper.folder import open_whisper
from worker.abilities import Abilities, told_abilities
from worker.adapters.wanted import MAX_ADAPTERS
from worker.defaults import note_defaults
from worker.embedding.describe import check_no_defaults, encoder_message
from worker.embedding.task import TextTask, task_of
from worker.kinds import is_speech
from worker.one_shot import print_answer
from worker.routed_experts import experts_message
from worker.settings import read_some
from worker.speech.describing import check_settings, speech_message

# Of a worker, those that decide what its model can do.
SETTINGS = ("reasoning_marks", "tool_dialect", "task", "allow_mlx_lm", "defaults")

# Inclusive; `top_p` and `repetition_penalty` may not be 0.
_SAMPLING_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, (1 << 31) - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
}
_NEVER_ZERO = frozenset({"top_p", "repetition_penalty"})
_MAX_TOKENS = (1 << 32) - 1
_MAX_LOGPROBS = 20
NO_ADAPTERS = "the model is computed by mlx-lm, where no adapters are added"


def main(argv: Sequence[str]) -> int:
    """Print the description of the checkpoint at `argv[0]`, a Model: see `print_answer`."""
    return print_answer("describe", argv, lambda path, settings: describe(path, **read_some(settings, SETTINGS)))


def describe(
    path: Path,
    *,
    reasoning_marks: str | Sequence[str] | None = None,
    tool_dialect: str | None = None,
    task: TextTask | None = None,
    allow_mlx_lm: bool = False,
    defaults: Mapping[str, float] | None = None,
) -> model_pb2.Model:
    """Return what the headers of the checkpoint at `path` say.

    Args:
        path: its folder or GGUF file.
        reasoning_marks: of the settings; None: those of its chat template.
        tool_dialect: the same.
        task: what a text model is for; None: what its files say.
        allow_mlx_lm: whether mlx-lm may compute architectures that are not written here.
        defaults: of requests, which go before those of the checkpoint.

    Raises:
        CheckpointError: it is not there, corrupt, or nothing that this build runs.
        ModelLoadFailed: the settings are of no use.
    """
    if is_speech(path):
        check_settings(reasoning_marks=reasoning_marks, tool_dialect=tool_dialect, task=task, defaults=defaults or None)
        return speech_message(open_whisper(path))
    if (task := task_of(path, task)) != "generate":
        check_no_defaults(defaults)
        return encoder_message(open_checkpoint(path), path, is_reranker=task == "rerank")
    checkpoint = open_any(path, allow_mlx_lm=allow_mlx_lm)
    abilities = told_abilities(checkpoint.chat_template, reasoning_marks=reasoning_marks, tool_dialect=tool_dialect)
    message = model_message(checkpoint, abilities)
    note_defaults(message, defaults or {})
    return message


def model_message(checkpoint: Checkpoint, abilities: Abilities) -> model_pb2.Model:
    """Return the part of a `Model` message that follows from the checkpoint alone.

    Args:
        checkpoint: its headers.
        abilities: what it can do beside plain text.

    Raises:
        CheckpointRejected: generation_config.json holds a default that no request could ask for.
    """
    takes_adapters = isinstance(checkpoint, TextCheckpoint)
    return model_pb2.Model(
        experts=experts_message(checkpoint),
        revision=checkpoint.revision,
        architecture=checkpoint.architecture,
        quantization=str(checkpoint.quantization or ""),
        tasks=[model_pb2.Model.TASK_GENERATE],
        limits=model_pb2.ModelLimits(
            max_context_tokens=checkpoint.limits.max_position_embeddings or 0,
            max_adapters=MAX_ADAPTERS if takes_adapters else 0,
        ),
        generation=_capabilities(abilities, takes_adapters=takes_adapters),
        default_sampling=default_sampling(checkpoint.generation_config),
        default_stopping=default_stopping(checkpoint.generation_config),
    )


def default_sampling(generation_config: Mapping[str, Any]) -> generation_pb2.SamplingParams:
    """Return how a request is sampled that says nothing about it.

    `do_sample: false` means temperature 0. Otherwise temperature, top_p, top_k, min_p and repetition_penalty are those
    of the file; what it leaves out is off (temperature and top_p 1). A checkpoint that says nothing at all, such as a
    GGUF file, gets temperature 0.8 and min_p 0.05: small models babble at 1, and llama.cpp has the same two. A null in
    the file is nothing.

    Raises:
        CheckpointRejected: a value is out of range, naming the key.
    """
    values: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    if all(generation_config.get(key) is None for key in (*_SAMPLING_RANGES, "do_sample")):
        values |= {"temperature": 0.8, "min_p": 0.05}
    for key, (low, high) in _SAMPLING_RANGES.items():
        value = generation_config.get(key)
        if value is None:
            continue
        kinds = (int,) if key == "top_k" else (int, float)
        if type(value) not in kinds or not low <= value <= high or (key in _NEVER_ZERO and not value):
            raise CheckpointRejected(f"is not within {low} to {high}", file=GENERATION_CONFIG_FILE, key=key)
        values[key] = value
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    return generation_pb2.SamplingParams(**values)


def default_stopping(generation_config: Mapping[str, Any]) -> generation_pb2.StoppingParams:
    """Return when a request ends that says nothing about it: after `max_new_tokens`, where the file has it.

    Raises:
        CheckpointRejected: it is no positive number of tokens.
    """
    limit = generation_config.get("max_new_tokens")
    if limit is None:
        return generation_pb2.StoppingParams()
    if type(limit) is not int or not 1 <= limit <= _MAX_TOKENS:
        raise CheckpointRejected("is no number of tokens", file=GENERATION_CONFIG_FILE, key="max_new_tokens")
    return generation_pb2.StoppingParams(max_tokens=limit)


def _capabilities(abilities: Abilities, *, takes_adapters: bool) -> model_pb2.GenerationCapabilities:
    """Say what this build can do beside plain text with such a model, and why not otherwise."""
    return model_pb2.GenerationCapabilities(
        logprobs=True,
        max_logprobs=_MAX_LOGPROBS,
        json_schema=True,
        regex=True,
        lark_grammar=True,
        tool_calls=abilities.dialect is not None,
        reasoning=abilities.marks is not None,
        adapters=takes_adapters,
        prefix_cache=True,
        unavailable={**abilities.unavailable, **({} if takes_adapters else {"adapters": NO_ADAPTERS})},
    )
