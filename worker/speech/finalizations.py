"""Where a caller wants its utterances ended, on the way from the event loop to the engine's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

MAX_WAITING = 32


class Finalizations:
    """Places in the audio, in seconds, in order.

    A caller may send them faster than the engine looks: `add` one only once there is `room`.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._loop: asyncio.AbstractEventLoop | None = None  # of who waits for room
        self._room = asyncio.Event()
        self._waiting: deque[float] = deque()
        self._last: float | None = None

    def add(self, place_s: float) -> None:
        """Add a place; one where the last was ends nothing more."""
        if place_s != self._last:
            self._last = place_s
            self._waiting.append(place_s)

    async def room(self) -> None:
        """Wait until the engine has taken what waits, where that is as much as may; on the event loop."""
        self._loop = asyncio.get_running_loop()
        while len(self._waiting) >= MAX_WAITING:
            self._room.clear()
            if len(self._waiting) >= MAX_WAITING:  # still, now that a `take` is noticed
                await self._room.wait()

    def take(self) -> list[float]:
        """Return those that came since the last call; on the engine's thread."""
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if taken and self._loop is not None:
            # A loop that is closed has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._room.set)
        return taken
