"""Counts what has come of all files of a pull, and tells it a few times a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gateway.hub.messages import Progress

INTERVAL_S = 0.2


class Meter:
    """Adds up the bytes of several files that come at once; any thread may call it.

    Args:
        tell: takes what is new.
        bytes_total: of all files.
        now: monotonic time in seconds.
    """

    def __init__(
        self, tell: Callable[[Progress], None], bytes_total: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._bytes_total = bytes_total
        self._now = now
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._doing = ("", "")
        self._told_s = float("-inf")

    def enter(self, phase: str, file: str) -> None:
        """Note what is done now, and with which file."""
        with self._lock:
            if (phase, file) != self._doing:
                self._doing = (phase, file)
                self._told_s = float("-inf")
            self._say()

    def moved(self, file: str, bytes_done: int) -> None:
        """Note how much of a file is there."""
        with self._lock:
            self._bytes[file] = bytes_done
            self._say()

    def _say(self) -> None:
        now_s = self._now()
        if now_s - self._told_s >= INTERVAL_S:
            self._told_s = now_s
            phase, file = self._doing
            self._tell(Progress(phase or "downloading", file, sum(self._bytes.values()), self._bytes_total))
