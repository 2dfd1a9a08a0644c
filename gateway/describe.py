"""Asks a one-shot worker what a checkpoint is: it reads headers only and prints a message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pomona.v1 import model_pb2
from structlog.typing import FilteringBoundLogger

from gateway.catalogue import CatalogueModel
from gateway.one_shot import OneShot
from gateway.process import Command


@dataclass(frozen=True, slots=True)
class Describer:
    """Describes checkpoints, a few at once.

    Attributes:
        command: the worker's program, `describe` included; the checkpoint's path is added to it, and the settings of
            the model that decide what it can do, where there are any.
        timeout_s: how long one may take, in seconds.
        log: takes what one-shots say when they fail.
        turns: how many may run at once.
        allow_mlx_lm: whether mlx-lm may compute architectures that are not written in this build.
        limits: of every model that is loaded here; those of audio are told of models that hear.
    """

    command: Command
    timeout_s: float
    log: FilteringBoundLogger
    turns: asyncio.Semaphore
    allow_mlx_lm: bool = False
    limits: model_pb2.ModelLimits = field(default_factory=model_pb2.ModelLimits)

    async def describe(self, model: CatalogueModel) -> model_pb2.Model:
        """Return what the headers of the model's checkpoint say, with the limits that it would have.

        Raises:
            LoadError: they cannot be read.
        """
        one_shot = OneShot(self.command, self.timeout_s, self.log, self.turns)
        facts = await one_shot.ask(model.name, model.checkpoint, self._settings(model), model_pb2.Model())
        facts.limits.MergeFrom(self.limits)
        if model_pb2.Model.TASK_TRANSCRIBE not in facts.tasks:
            facts.limits.ClearField("max_audio_duration")
            facts.limits.ClearField("default_idle_timeout")
        return facts

    def _settings(self, model: CatalogueModel) -> dict[str, Any]:
        told = {"reasoning_marks": model.reasoning_marks, "tool_dialect": model.tool_dialect, "task": model.task}
        told |= {"allow_mlx_lm": self.allow_mlx_lm or None, "defaults": dict(model.defaults) or None}
        return {name: value for name, value in told.items() if value is not None}
