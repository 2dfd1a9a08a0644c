"""Has grammars tried in a child process that can be killed, one at a time."""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any

from worker.child import TRIALS, Child
from worker.constraints.grammar import Kind
from worker.constraints.limits import TRIAL_CPU_S
from worker.constraints.refusal import Reason, Refused, too_complex
from worker.constraints.source import Source
from worker.errors import ConstraintBusy, QueueFull

MAX_WAITING = 64
# Python and the library take 0.2 s on an idle machine.
START_TIMEOUT_S = 20.0
# A busy machine may take so many times as long as the grammar computes.
WALL_FACTOR = 10.0
# A child may have been ended by something else than this grammar; twice it was the grammar.
ATTEMPTS = 2
# The kernel ends a child so for what it tries; by another signal it may have been ended for another reason.
_OWN_FAULTS: dict[int, str] = {
    signal.SIGPROF: f"it takes longer than {TRIAL_CPU_S:g} s to prepare",
    signal.SIGSEGV: "it is too deep, or its rules lead too far",
    signal.SIGBUS: "it is too deep, or its rules lead too far",
    signal.SIGABRT: "it takes too much memory",
}

log = logging.getLogger(__name__)


class TrialChildError(Exception):
    """Raised when no child could be started: a fault of this machine, not of a request."""


class Trials:
    """Tries grammars in a child, which is started with the first of them and replaced when one ends it.

    Args:
        special_tokens: ids of all special tokens of the model, by their names.
        spawn: starts a child that runs a module of ours.
    """

    def __init__(self, special_tokens: Mapping[str, int], spawn: Callable[[str], Child] = Child.spawn) -> None:
        self._hello = json.dumps({"special_tokens": dict(special_tokens)}).encode()
        self._spawn = spawn
        self._child: Child | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return self._child.pid if self._child else None

    async def try_out(self, kind: Kind, text: str) -> Source:
        """Read, check and compile a grammar in the child.

        Raises:
            QueueFull: too many wait.
            Refused: it is not one that can be taken, or took too much time, memory or stack.
            ConstraintBusy: the child got too little of the machine's time.
            TrialChildError: there is no child.
        """
        if self._num_waiting >= MAX_WAITING:
            raise QueueFull(self._num_waiting)
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._ask(json.dumps({"kind": kind, "text": text}).encode())
        finally:
            self._num_waiting -= 1

    async def close(self) -> None:
        """End the child, where there is one."""
        await self._drop()

    async def _ask(self, request: bytes) -> Source:
        ended_by: int | None = None
        for _ in range(ATTEMPTS):
            child = await self._warm()
            try:
                return _source(await child.ask(request, WALL_FACTOR * TRIAL_CPU_S))
            except TimeoutError:
                await self._drop()
                raise ConstraintBusy(self._num_waiting) from None
            except asyncio.CancelledError:
                await self._drop()  # its answer would be taken for that of the next
                raise
            except (EOFError, OSError):
                ended_by = await self._drop()
                if ended_by in _OWN_FAULTS:
                    break
        if ended_by is None:
            raise TrialChildError("the child that tries grammars ended by itself")
        raise too_complex(_OWN_FAULTS.get(ended_by, "it takes too much memory"))

    async def _warm(self) -> Child:
        """Return a child that is alive and knows the vocabulary."""
        if self._child is not None and self._child.is_gone:
            await self._drop()
        if self._child is None:
            try:
                self._child = self._spawn(TRIALS)
                await self._child.ask(self._hello, START_TIMEOUT_S)
            except (EOFError, OSError) as error:  # a TimeoutError is an OSError
                await self._drop()
                log.exception("trial child was not started")
                raise TrialChildError("the child that tries grammars was not started") from error
            except asyncio.CancelledError:
                await self._drop()
                raise
        return self._child

    async def _drop(self) -> int | None:
        """End the child, where there is one, and return the signal that ended it."""
        child, self._child = self._child, None
        return None if child is None else await child.end()


def _source(answer: dict[str, Any]) -> Source:
    if "refused" in answer:
        raise Refused(Reason(answer["refused"]), answer["problem"])
    return Source(answer["text"], frozenset(answer["special_tokens"]), answer["cost_s"])
