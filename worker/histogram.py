"""Durations by length; plain Python. Written on one thread, read anywhere."""

import bisect

from worker.job import Durations

# Upper bounds in microseconds, a factor of about two apart; what is longer is counted behind the last.
BOUNDS_US = tuple(
    factor * power for power in (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000) for factor in (1, 2, 5)
)


class Histogram:
    """Durations by length.

    Args:
        name: what is timed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = [0] * (len(BOUNDS_US) + 1)
        self._total_us = 0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        duration_us = round(max(0.0, seconds) * 1e6)
        self._counts[bisect.bisect_left(BOUNDS_US, duration_us)] += 1
        self._total_us += duration_us

    def snapshot(self) -> Durations:
        """Return what was counted so far."""
        return Durations(self._name, BOUNDS_US, tuple(self._counts), self._total_us)
