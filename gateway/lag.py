"""How late the event loop is: what a task that is ready waits for its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_S = 0.25


class LoopLag:
    """Looks several times a second at how late its own timer is. Lives on one event loop.

    Attributes:
        last_s: the lag at the last look, in seconds.
    """

    def __init__(self, look_s: float = LOOK_S) -> None:
        """Look every so many seconds once `follow` runs."""
        self.last_s = 0.0
        self._look_s = look_s
        self._noted: list[Callable[[float], None]] = []

    def tell(self, noted: Callable[[float], None]) -> None:
        """Have `noted` called with the lag at each look, in seconds."""
        self._noted.append(noted)

    async def follow(self) -> None:
        """Look until it is cancelled."""
        while True:
            due_s = time.monotonic() + self._look_s
            await asyncio.sleep(self._look_s)
            self.last_s = max(0.0, time.monotonic() - due_s)
            for noted in self._noted:
                noted(self.last_s)
