"""What a text model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from models.checkpoint.pooling import has_pooling

TextTask = Literal["generate", "embed", "rerank"]


def task_of(checkpoint: Path, told: TextTask | None) -> TextTask:
    """Return what a text model is for; a reranker is nothing that files tell.

    Args:
        checkpoint: its folder or file.
        told: by the settings; None: what its files say.
    """
    if told is not None:
        return told
    return "embed" if has_pooling(checkpoint) else "generate"
