"""What a checkpoint for speech is and can do, told from its headers alone; imports no MLX."""

from __future__ import annotations

from pomona.v1 import model_pb2

from models.checkpoint.checkpoint import Checkpoint
from models.whisper.config import Config
from worker.errors import ModelLoadFailed
from worker.speech.facts import can_translate, languages_of
from worker.speech.tags import tag_of

SAMPLE_RATE_HZ = 16_000


def speech_message(checkpoint: Checkpoint) -> model_pb2.Model:
    """Return the part of a `Model` message that follows from the checkpoint alone."""
    config = Config.from_checkpoint(checkpoint.config)
    return model_pb2.Model(
        revision=checkpoint.revision,
        architecture=checkpoint.architecture,
        quantization=str(checkpoint.quantization or ""),
        tasks=[model_pb2.Model.TASK_TRANSCRIBE],
        limits=model_pb2.ModelLimits(max_context_tokens=config.n_text_ctx),
        transcription=model_pb2.TranscriptionCapabilities(
            languages=[tag_of(code) for code in languages_of(config)],
            word_timestamps=True,
            live=True,
            translate=can_translate(config),
            native_sample_rate_hz=SAMPLE_RATE_HZ,
        ),
    )


def check_settings(**given: object) -> None:
    """Refuse settings that a model for speech cannot have.

    Args:
        given: by name; None: unset.

    Raises:
        ModelLoadFailed: one is set.
    """
    for name, value in given.items():
        if value is not None:
            raise ModelLoadFailed(f"a model for speech has no {name}", option=name)
