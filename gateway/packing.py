"""Packing as whoever ordered it sees it: a one-shot worker that is watched, and asked to end when nobody wants it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from structlog.typing import FilteringBoundLogger

from gateway.errors import ModelLoadFailed
from gateway.process import Child, Command, ProcessError, spawn
from gateway.worker_lines import json_object

END_LIMIT_S = 5.0
# Nothing was said for so long: a disk may take some time to bring what was written to its plates, but not this.
SILENCE_LIMIT_S = 1800.0
POLL_S = 1.0
MESSAGES = ("plan", "stale", "progress", "pack")

Action = Literal["build", "rebuild", "check", "remove"]
OnMessage = Callable[[str, Mapping[str, Any]], None]
"""Takes `plan`, `stale`, `progress` or `pack`, and its facts, see `worker.pack`."""


class PackRefused(Exception):
    """Raised when the worker says why there is no pack.

    Attributes:
        reason: in a word, for programs.
        metadata: facts for programs.
    """

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = metadata


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs checkpoints of this machine.

    Attributes:
        command: the worker's program with its verb `pack`.
        log: takes what it says when it fails unexpectedly.
        now: monotonic time in seconds.
        silence_limit_s: how long it may say nothing, in seconds.
    """

    command: Command
    log: FilteringBoundLogger
    now: Callable[[], float] = time.monotonic
    silence_limit_s: float = SILENCE_LIMIT_S

    async def run(self, name: str, checkpoint: Path, action: Action, on_message: OnMessage) -> None:
        """Do something with the pack of a checkpoint; to cancel this ends it, and leaves nothing unfinished.

        Args:
            name: of the model, for errors.
            checkpoint: its folder.
            action: what is to be done.
            on_message: called with all that is said of it; the last is `pack`.

        Raises:
            PackRefused: it cannot be done, and the worker says why.
            ModelLoadFailed: the worker does not.
        """
        said = _Said(on_message, self.now)
        argv = (*self.command.argv, str(checkpoint), json.dumps({"action": action}))
        try:
            child = spawn(Command(argv, self.command.environment), b"", said.take)
        except ProcessError as error:
            self.log.warning("packing not started", model=name, problem=str(error))
            raise ModelLoadFailed(name, "no process could be started to pack its experts.") from error
        await self._until_gone(child, said)
        if said.refusal is not None:
            raise said.refusal
        if not said.is_done:
            self.log.error("packing failed unexpectedly", model=name, exit=child.exit.result())
            raise ModelLoadFailed(name, "its experts could not be packed.")

    async def _until_gone(self, child: Child, said: _Said) -> None:
        try:
            while not child.exit.done() and self.now() - said.last_s < self.silence_limit_s:
                await asyncio.wait([child.exit], timeout=POLL_S)
        finally:
            if not child.exit.done():
                child.signal_leader(signal.SIGTERM)  # it removes what it has begun
                await child.wait(END_LIMIT_S)
            child.signal_group(signal.SIGKILL)
            await child.wait(END_LIMIT_S)


class _Said:
    """What a packing worker has said so far."""

    def __init__(self, on_message: OnMessage, now: Callable[[], float]) -> None:
        self._on_message = on_message
        self._now = now
        self.last_s = now()
        self.is_done = False
        self.refusal: PackRefused | None = None

    def take(self, stream: str, line: str) -> None:
        """Take a line."""
        self.last_s = self._now()
        said = json_object(line) if stream == "stdout" else {}
        if {"reason", "message"} <= said.keys():
            metadata = cast("dict[str, object]", said.get("metadata") or {})
            facts = {key: str(value) for key, value in metadata.items()}
            self.refusal = PackRefused(str(said["reason"]), str(said["message"]), facts)
        for what in MESSAGES:
            if isinstance(said.get(what), dict):
                self.is_done = what == MESSAGES[-1]
                self._on_message(what, said[what])
