"""How long it is between two messages of an answer, counted by length: what runs for every message is this."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Gaps:
    """The gaps between messages of one model's answers.

    Attributes:
        counts: by length, the last behind the last bound.
        total_s: of all gaps.
        messages: how many there were.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with none; `now` is in seconds."""
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self.messages = 0
        self._now = now

    def pace(self) -> Callable[[], None]:
        """Return what is to be called for each message of one answer."""
        return _Pace(self, self._now).message


class _Pace:
    """One answer on its way."""

    __slots__ = ("_gaps", "_last_s", "_now")

    def __init__(self, gaps: Gaps, now: Callable[[], float]) -> None:
        self._gaps = gaps
        self._now = now
        self._last_s: float | None = None

    def message(self) -> None:
        """Count a message, and the gap before it."""
        now_s, last_s, gaps = self._now(), self._last_s, self._gaps
        self._last_s = now_s
        gaps.messages += 1
        if last_s is not None:
            gaps.counts[bisect.bisect_left(BOUNDS_S, now_s - last_s)] += 1
            gaps.total_s += now_s - last_s
