"""From the settings of a worker to a model that hears."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx
from pomona.v1 import common_pb2, model_pb2

from models.checkpoint.errors import CheckpointCorrupt
from models.layers.device import device_name
from models.registry import LoadProgress
from models.silero.detector import SpeechDetector
from models.silero.model import load_silero
from models.step import NumericPath
from models.whisper.audio import LogMel
from models.whisper.fit import CPU_HEARD_AT_ONCE, HEARD_AT_ONCE
from models.whisper.folder import open_whisper
from models.whisper.loading import LoadedWhisper, load_whisper
from models.whisper.session import Feed, Session
from models.whisper.state import Texts
from native import kernels
from worker.settings import WorkerSettings
from worker.speech.bounds import DEFAULT_BYTES, SpeechBounds
from worker.speech.describing import check_settings, speech_message
from worker.speech.loaded import LoadedSpeech
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload

# Freed arrays that MLX keeps for the next ones: those of an encoder's pass are large and come again.
MLX_POOL_BYTES = 256 << 20


def make_speech_workload(settings: WorkerSettings) -> SpeechWorkload:
    """Return the workload that loads and runs the model of the settings."""

    def load_model(report: Callable[[LoadProgress], None]) -> LoadedSpeech:
        return load_speech(settings, report)

    bounds = SpeechBounds(
        max_rows=settings.max_batch_rows,
        max_bytes=settings.kv_bytes or DEFAULT_BYTES,
        max_new_windows=CPU_HEARD_AT_ONCE if device_name() == "cpu" else HEARD_AT_ONCE,
        max_queue_requests=settings.max_queue_requests,
    )
    return SpeechWorkload(load_model, make_transcriber, bounds)


def load_speech(settings: WorkerSettings, report: Callable[[LoadProgress], None]) -> LoadedSpeech:
    """Read a model and compute with it once; on the thread that is to run it.

    Raises:
        CheckpointError: its folder cannot be used.
        ModelLoadFailed: the settings ask for what no model for speech has.
    """
    check_settings(
        context_tokens=settings.context_tokens,
        kv_scheme=None if settings.kv_scheme == "none" else settings.kv_scheme,
        defaults=settings.defaults or None,
        experts=None if settings.experts == "auto" else settings.experts,
        expert_budget=settings.expert_budget,
        expert_trace=settings.expert_trace,
        reasoning_marks=settings.reasoning_marks,
        tool_dialect=settings.tool_dialect,
        task=settings.task,
    )
    report(LoadProgress("headers", 0, 0))
    checkpoint = open_whisper(Path(settings.checkpoint))
    path = NumericPath(settings.path)

    def tell(phase: str, done: int, total: int) -> None:
        report(LoadProgress(phase, done, total))

    whisper = load_whisper(checkpoint, path, tell, cpu_kernels=settings.cpu_kernels)
    if whisper.kernels == "native":
        mx.set_cache_limit(MLX_POOL_BYTES)
        if settings.compute_threads is not None:
            kernels.set_threads(settings.compute_threads)
    report(LoadProgress("warm-up", whisper.weights_bytes, whisper.weights_bytes))
    session = Session(whisper.model, is_reference=path is NumericPath.REFERENCE)
    warm_up(whisper, session)
    return LoadedSpeech(whisper, session, LogMel(whisper.model.config.n_mels), partial(SpeechDetector, load_silero()))


def warm_up(whisper: LoadedWhisper, session: Session) -> None:
    """Hear a window of silence and compute a token, so that the first request does not wait for what is done once.

    Raises:
        CheckpointCorrupt: what comes out is no number, so that every request would fail.
    """
    config = whisper.model.config
    (memory,) = session.hear([mx.zeros((config.num_frames, config.n_mels))])
    (logits,) = session.step([Feed(Texts(memory), [[whisper.tokenizer.start]], (0,))])
    if not mx.isfinite(mx.array(logits)).all().item():
        raise CheckpointCorrupt("computes values that are no numbers", file=whisper.checkpoint.name)


def resolved_model(whisper: LoadedWhisper, settings: WorkerSettings) -> common_pb2.ResolvedModel:
    """Return which model answers, exactly."""
    return common_pb2.ResolvedModel(
        model=settings.model, revision=whisper.checkpoint.revision, worker_instance_id=settings.instance_id
    )


def loaded_message(whisper: LoadedWhisper, max_rows: int, settings: WorkerSettings) -> model_pb2.Model:
    """Return the loaded model with its limits and how it runs."""
    message = speech_message(whisper.checkpoint)
    message.model = settings.model
    message.limits.max_batch_rows = max_rows
    message.limits.max_queue_requests = settings.max_queue_requests
    message.limits.max_request_bytes = settings.max_request_bytes
    message.limits.max_response_bytes = settings.max_response_bytes
    message.limits.max_audio_duration.FromNanoseconds(round(settings.max_audio_s * 1e9))
    message.limits.default_idle_timeout.FromNanoseconds(round(settings.audio_idle_s * 1e9))
    message.runtime.options.max_batch_rows = max_rows
    message.runtime.device = whisper.device
    message.runtime.compute_dtype = str(whisper.dtype).removeprefix("mlx.core.")
    message.runtime.implementation = "pomona"  # no other computes Whisper
    message.runtime.path = whisper.path.value
    message.memory.weights_bytes = whisper.weights_bytes
    return message
