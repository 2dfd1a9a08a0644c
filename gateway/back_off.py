"""How long a model that crashed waits before it is tried again, and when it is not tried again."""

import random
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackOffLimits:
    """The pauses between starts and the budget of crashes.

    Attributes:
        first_s: the first pause; each following one is `factor` times as long.
        factor: how pauses grow.
        longest_s: what no pause exceeds, before its jitter.
        jitter: the part by which a pause may be shorter or longer.
        budget_crashes: the crash, within the window, that is the last.
        budget_window_s: how long a crash is remembered.
        good_run_s: a worker that served this long lets the pauses begin anew.
    """

    first_s: float = 0.5
    factor: float = 2.0
    longest_s: float = 30.0
    jitter: float = 0.2
    budget_crashes: int = 5
    budget_window_s: float = 600.0
    good_run_s: float = 60.0


class BackOff:
    """The crashes of one model."""

    def __init__(self, limits: BackOffLimits, chance: random.Random) -> None:
        """Begin without a crash; `chance` gives the jitter."""
        self._limits = limits
        self._chance = chance
        self._crashes: deque[float] = deque()
        self._pauses = 0

    @property
    def attempt(self) -> int:
        """How many pauses there were since the last good run."""
        return self._pauses

    def crashed(self, now_s: float, served_s: float, *, is_counted: bool = True) -> float | None:
        """Note a crash.

        Args:
            now_s: monotonic time.
            served_s: how long the worker had been ready.
            is_counted: False where it belongs to an incident that was counted already; one that follows a crash
                without a good run between them counts all the same.

        Returns:
            The pause before the next start in seconds, or None when the budget is spent.
        """
        if served_s >= self._limits.good_run_s:
            self._pauses = 0
        if is_counted or self._pauses:  # Whatever began it, a model that fails again and again does so by itself.
            self._crashes.append(now_s)
        while self._crashes and self._crashes[0] <= now_s - self._limits.budget_window_s:
            self._crashes.popleft()
        if len(self._crashes) >= self._limits.budget_crashes:
            return None
        pause_s = min(self._limits.longest_s, self._limits.first_s * self._limits.factor**self._pauses)
        self._pauses += 1
        return pause_s * self._chance.uniform(1 - self._limits.jitter, 1 + self._limits.jitter)

    def reset(self) -> None:
        """Forget every crash."""
        self._crashes.clear()
        self._pauses = 0
