"""Which kind of model a checkpoint is, and so what hosts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint.errors import CheckpointError
from models.whisper.folder import is_whisper
from worker.embedding.task import task_of

if TYPE_CHECKING:
    from worker.child import Child
    from worker.hosting import Hosting
    from worker.settings import WorkerSettings


def make_hosting(settings: WorkerSettings, child: Child | None) -> Hosting:
    """Return what hosts the checkpoint of the settings; one that cannot be read fails when it is loaded.

    Args:
        settings: of the worker.
        child: already started for templates, if one was.
    """
    if is_speech(Path(settings.checkpoint)):
        from worker.speech.hosting import SpeechHosting  # noqa: PLC0415  (what is not hosted costs no cold start)

        return SpeechHosting(settings, child)
    if (task := task_of(Path(settings.checkpoint), settings.task)) != "generate":
        from worker.embedding.hosting import EmbeddingHosting  # noqa: PLC0415

        return EmbeddingHosting(settings, child, is_reranker=task == "rerank")
    from worker.text_hosting import TextHosting  # noqa: PLC0415

    return TextHosting(settings, child)


def is_speech(path: Path) -> bool:
    """Whether a checkpoint says that it is a model for speech."""
    try:
        return path.is_dir() and is_whisper(path)
    except CheckpointError:
        return False  # whoever opens it says what is wrong
