"""What one-shots share that take their time: they say how far they are, and clean up when they are asked to end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

INTERVAL_S = 0.2


def say(what: str, facts: Mapping[str, Any]) -> None:
    """Print a message, a line of JSON: {what: facts}."""
    sys.stdout.write(json.dumps({what: dict(facts)}) + "\n")
    sys.stdout.flush()


def raise_when_asked_to_end(error: Callable[[], Exception]) -> None:
    """Have SIGTERM raise an error on this thread, the main one: what was begun is removed on its way."""

    def interrupt(_number: int, _frame: object) -> None:
        raise error()

    signal.signal(signal.SIGTERM, interrupt)


class Progress:
    """Says how far a work is, a few times a second and whenever a phase begins or ends.

    Args:
        now: monotonic time in seconds.
        done: the name under which is told what is done.
        total: the name of what there is.
    """

    def __init__(self, now: Callable[[], float], done: str, total: str) -> None:
        self._now = now
        self._names = done, total
        self._phase = ""
        self._said_s = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Take one report."""
        now_s = self._now()
        if phase != self._phase or done == total or now_s - self._said_s >= INTERVAL_S:
            self._phase, self._said_s = phase, now_s
            say("progress", {"phase": phase, **dict(zip(self._names, (done, total), strict=True))})
