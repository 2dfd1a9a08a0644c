"""One-shot workers that take their time: each is watched while it works, and asked to end when nobody wants it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from gateway.errors import ModelLoadFailed
from gateway.process import Child, Command, ProcessError, spawn
from gateway.worker_lines import json_object

END_LIMIT_S = 5.0
# Nothing was said for so long: a disk may take some time to bring what was written to its plates, and a large model to
# load, but not this.
SILENCE_LIMIT_S = 1800.0
POLL_S = 1.0

OnMessage = Callable[[str, Mapping[str, Any]], None]
"""Takes a message's name, and its facts."""


class OneShotRefused(Exception):
    """Raised when a worker says why it has done nothing.

    Attributes:
        reason: in a word, for programs.
        metadata: facts for programs.
    """

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = metadata


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of work.

    Attributes:
        verb: of the worker's program.
        deed: in words, as in "its worker did not …".
        messages: what may be said of it, by name; the last ends it.
    """

    verb: str
    deed: str
    messages: tuple[str, ...]


PACK = Work("pack", "pack its experts", ("plan", "stale", "progress", "pack"))
FUSE = Work("fuse", "fuse it", ("plan", "progress", "fused"))


@dataclass(frozen=True, slots=True)
class WatchedOneShot:
    """Has one kind of work done on checkpoints of this machine.

    Attributes:
        work: which kind.
        command: the worker's program with the work's verb.
        log: takes what it says when it fails unexpectedly.
        now: monotonic time in seconds.
        silence_limit_s: how long it may say nothing, in seconds.
    """

    work: Work
    command: Command
    log: FilteringBoundLogger
    now: Callable[[], float] = time.monotonic
    silence_limit_s: float = SILENCE_LIMIT_S

    async def run(self, name: str, checkpoint: Path, settings: Mapping[str, Any], on_message: OnMessage) -> None:
        """Do it; to cancel this ends it, and leaves nothing unfinished.

        Args:
            name: of the model, for errors.
            checkpoint: its folder.
            settings: of the work, see the module of the worker that is named as the verb.
            on_message: called with all that is said of it.

        Raises:
            OneShotRefused: it cannot be done, and the worker says why.
            ModelLoadFailed: the worker does not.
        """
        deed, said = self.work.deed, _Said(self.work.messages, on_message, self.now)
        argv = (*self.command.argv, str(checkpoint), json.dumps(settings))
        try:
            child = spawn(Command(argv, self.command.environment), b"", said.take)
        except ProcessError as error:
            self.log.warning("one-shot not started", verb=self.work.verb, model=name, problem=str(error))
            raise ModelLoadFailed(name, f"no process could be started to {deed}.") from error
        await self._until_gone(child, said)
        if said.refusal is not None:
            raise said.refusal
        if not said.is_done:
            self.log.error("one-shot failed", verb=self.work.verb, model=name, exit=child.exit.result())
            raise ModelLoadFailed(name, f"its worker did not {deed}, and did not say why.")

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
    """What a worker has said so far."""

    def __init__(self, messages: tuple[str, ...], on_message: OnMessage, now: Callable[[], float]) -> None:
        self._messages = messages
        self._on_message = on_message
        self._now = now
        self.last_s = now()
        self.is_done = False
        self.refusal: OneShotRefused | None = None

    def take(self, stream: str, line: str) -> None:
        """Take a line."""
        self.last_s = self._now()
        said = json_object(line) if stream == "stdout" else {}
        if {"reason", "message"} <= said.keys():
            metadata = cast("dict[str, object]", said.get("metadata") or {})
            facts = {key: str(value) for key, value in metadata.items()}
            self.refusal = OneShotRefused(str(said["reason"]), str(said["message"]), facts)
        for what in self._messages:
            if isinstance(said.get(what), dict):
                self.is_done = what == self._messages[-1]
                self._on_message(what, said[what])
