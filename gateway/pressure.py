"""How full the machine's memory is: measured beside the event loop, judged by two marks, and left with some slack.

What is measured is what processes hold, never what was promised to them; and the machine as a whole, as others use it
too. A model that takes no more than was reserved for it is no danger by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.footprint import footprint_bytes
from gateway.memory import MachineMemory, machine_memory
from gateway.model_status import PressureLevel

READ_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Marks:
    """Where it begins to be too full, as shares from 0 to 1.

    Attributes:
        soft: from here on no load starts.
        hard: from here on requests are refused and the newest load goes.
        slack: how far below a mark it must be again for that to end.
    """

    soft: float = 0.85
    hard: float = 0.95
    slack: float = 0.05


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured at one moment.

    Attributes:
        began_s: when that began, by the clock of whoever asked.
        machine: what there is, and is free.
        footprints: bytes of workers, by process id; those that could not be read are missing.
    """

    began_s: float
    machine: MachineMemory
    footprints: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def worker_bytes(self) -> int:
        """What workers hold together."""
        return sum(self.footprints.values())

    @property
    def used_bytes(self) -> int:
        """What is used of the machine; 0 where the system does not say."""
        free = self.machine.free_bytes
        return 0 if free is None else max(0, self.machine.total_bytes - free)


class Pressure:
    """The level that the last reading leads to.

    Args:
        marks: where levels begin.
        budget_bytes: what workers may take together.
    """

    def __init__(self, marks: Marks, budget_bytes: int) -> None:
        self.level = PressureLevel.NORMAL
        self.share = 0.0
        self.reading: Reading | None = None
        self._marks = marks
        self._budget_bytes = budget_bytes

    @property
    def excess_bytes(self) -> int:
        """What must come free before a load may start; 0 where one may now."""
        if self.level is PressureLevel.NORMAL or self.reading is None:
            return 0
        low = self._marks.soft - self._marks.slack
        of_workers = self.reading.worker_bytes - low * self._budget_bytes
        of_machine = self.reading.used_bytes - low * self.reading.machine.total_bytes
        return max(1, int(of_workers), int(of_machine))

    def take(self, reading: Reading, *, is_as_promised: bool) -> None:
        """Judge a reading.

        Args:
            reading: the newest.
            is_as_promised: whether no worker holds more than is reserved for it.
        """
        self.reading = reading
        workers = reading.worker_bytes / self._budget_bytes
        machine = reading.used_bytes / reading.machine.total_bytes
        self.share = max(workers, machine)
        if self._is_over(self._marks.hard, machine if is_as_promised else self.share, PressureLevel.HARD_LIMIT):
            self.level = PressureLevel.HARD_LIMIT
        elif self._is_over(self._marks.soft, self.share, PressureLevel.SOFT_LIMIT):
            self.level = PressureLevel.SOFT_LIMIT
        else:
            self.level = PressureLevel.NORMAL

    def _is_over(self, mark: float, share: float, level: PressureLevel) -> bool:
        """Say whether a level holds: it begins at its mark, and ends only below its slack."""
        return share >= (mark - self._marks.slack if self.level >= level else mark)


Read = Callable[[Iterable[int], float], Reading]
"""Measures workers of these process ids; it may block. It is given the time."""


def read_system(pids: Iterable[int], now_s: float) -> Reading:
    """Ask the system."""
    footprints = {pid: found for pid in pids if (found := footprint_bytes(pid)) is not None}
    return Reading(now_s, machine_memory(), footprints)


class Sampler:
    """Measures again and again, in a thread, one reading at a time. Lives on one event loop.

    Args:
        read: measures.
        interval_s: from one reading to the next.
        now: monotonic time in seconds.
    """

    def __init__(self, read: Read, interval_s: float, now: Callable[[], float]) -> None:
        self._read = read
        self._interval_s = interval_s
        self._now = now
        self._wake = asyncio.Event()

    def hurry(self) -> None:
        """Have the next reading taken at once."""
        self._wake.set()

    async def follow(self, pids: Callable[[], Iterable[int]], take: Callable[[Reading], None]) -> None:
        """Give every reading to `take`; runs until it is cancelled.

        A reading that the system holds up is waited for, and no second one is begun beside it; then nothing is new.
        """
        while True:
            measuring = asyncio.ensure_future(asyncio.to_thread(self._read, tuple(pids()), self._now()))
            try:
                await asyncio.wait([measuring])  # its own life is the limit
            finally:
                measuring.cancel()
            if measuring.exception() is None:  # else the system starts no thread for it
                take(measuring.result())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            self._wake.clear()
