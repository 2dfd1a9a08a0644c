"""Asks one-shot workers about checkpoints: each reads headers only, prints a message as JSON, and is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError, ModelLoadFailed, load_error
from gateway.process import Command, Output, ProcessError, RunTimeoutError, run_once
from gateway.request_errors import UnsupportedOption, Violation

MAX_OUTPUT_BYTES = 1024 * 1024
MAX_AT_ONCE = 2
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class OneShot:
    """Runs one verb of the worker's program, a few at once.

    Attributes:
        command: the worker's program, the verb included; a checkpoint's path is added to it, and settings where there
            are any.
        timeout_s: how long one may take, in seconds.
        log: takes what they say when they fail.
        turns: how many may run at once.
    """

    command: Command
    timeout_s: float
    log: FilteringBoundLogger
    turns: asyncio.Semaphore

    async def ask(self, name: str, checkpoint: Path, settings: Mapping[str, Any], answer: Answer) -> Answer:
        """Return what is said of a checkpoint.

        Args:
            name: of the model, for errors.
            checkpoint: its folder or file.
            settings: some of a worker's.
            answer: an empty message of the kind that is printed; it is filled.

        Raises:
            LoadError: it cannot be read.
            UnsupportedOption: such a model does not have one of the settings.
        """
        arguments = (str(checkpoint), *([json.dumps(settings)] if settings else []))
        command = Command((*self.command.argv, *arguments), self.command.environment)
        try:
            async with self.turns:
                output = await run_once(command, timeout_s=self.timeout_s, max_output_bytes=MAX_OUTPUT_BYTES)
        except ProcessError as error:
            self.log.warning("checkpoint not read", model=name, problem=type(error).__name__)
            late = " in time" if isinstance(error, RunTimeoutError) else ""
            raise ModelLoadFailed(name, f"its headers could not be read{late}.") from error
        if output.exit.code != 0:
            raise self._failure(name, output)
        try:
            return json_format.Parse(output.stdout, answer, ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError) as error:
            self.log.error("one-shot not understood", model=name, exc_info=error)  # noqa: TRY400 - with trace
            raise ModelLoadFailed(name, "what its worker says of it is not understood.") from error

    def _failure(self, name: str, output: Output) -> GatewayError:
        try:
            said: dict[str, Any] = json.loads(output.stdout)
            facts = {str(key): str(value) for key, value in said.get("metadata", {}).items()}
            if said["reason"] == "UNSUPPORTED_OPTION":
                return UnsupportedOption((Violation(facts["field"], f"is refused: {said['message']}"),))
            return load_error(name, str(said["reason"]), str(said["message"]), facts)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.log.warning("checkpoint not read", model=name, last_lines=list(output.exit.last_lines))
            return ModelLoadFailed(name, "its headers could not be read.")
