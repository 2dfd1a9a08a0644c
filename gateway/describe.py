"""Asks a one-shot worker what a checkpoint is: it reads headers only and prints a message."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from pomona.v1 import model_pb2
from structlog.typing import FilteringBoundLogger

from gateway.catalogue import CatalogueModel
from gateway.errors import LoadError, ModelLoadFailed, load_error
from gateway.process import Command, ProcessError, RunTimeoutError, run_once

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Describer:
    """Describes checkpoints, a few at once.

    Attributes:
        command: the worker's program, `describe` included; the checkpoint's path is added to it, and the settings of
            the model that decide what it can do, where there are any.
        timeout_s: how long one may take, in seconds.
        log: takes what one-shots say when they fail.
        turns: how many may run at once.
    """

    command: Command
    timeout_s: float
    log: FilteringBoundLogger
    turns: asyncio.Semaphore

    async def describe(self, model: CatalogueModel) -> model_pb2.Model:
        """Return what the headers of the model's checkpoint say.

        Raises:
            LoadError: they cannot be read.
        """
        command = Command((*self.command.argv, *_arguments(model)), self.command.environment)
        try:
            async with self.turns:
                output = await run_once(command, timeout_s=self.timeout_s, max_output_bytes=MAX_OUTPUT_BYTES)
        except ProcessError as error:
            self.log.warning("checkpoint not described", model=model.name, problem=type(error).__name__)
            late = " in time" if isinstance(error, RunTimeoutError) else ""
            raise ModelLoadFailed(model.name, f"its headers could not be read{late}.") from error
        if output.exit.code == 0:
            return self._message(model, output.stdout)
        raise self._failure(model, output.stdout, output.exit.last_lines)

    def _message(self, model: CatalogueModel, printed: bytes) -> model_pb2.Model:
        try:
            return json_format.Parse(printed, model_pb2.Model(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError) as error:
            self.log.error("description not understood", model=model.name, exc_info=error)  # noqa: TRY400 - with trace
            raise ModelLoadFailed(model.name, "what its worker says of it is not understood.") from error

    def _failure(self, model: CatalogueModel, printed: bytes, last_lines: tuple[str, ...]) -> LoadError:
        try:
            said: dict[str, Any] = json.loads(printed)
            facts = {str(key): str(value) for key, value in said.get("metadata", {}).items()}
            return load_error(model.name, str(said["reason"]), str(said["message"]), facts)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.log.warning("checkpoint not described", model=model.name, last_lines=list(last_lines))
            return ModelLoadFailed(model.name, "its headers could not be read.")


def _arguments(model: CatalogueModel) -> tuple[str, ...]:
    told = {"reasoning_marks": model.reasoning_marks, "tool_dialect": model.tool_dialect}
    settings = {name: value for name, value in told.items() if value is not None}
    return (str(model.checkpoint), *([json.dumps(settings)] if settings else []))
