"""What runs as long as the server does: whatever of it breaks is told of, and begun again after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from structlog.typing import FilteringBoundLogger

PAUSE_S = 1.0  # from a break to the next beginning

Begin = Callable[[], Coroutine[Any, Any, None]]
"""Begins work that runs until it is cancelled; it may be begun again."""


class Followers:
    """The tasks of such work. Lives on one event loop."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        """Begin with none; `log` is told of each break."""
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, works: Mapping[str, Begin]) -> None:
        """Have work run until `stop`; the keys are its names."""
        self._tasks += [asyncio.create_task(lasting(name, work, self._log), name=name) for name, work in works.items()]

    async def stop(self) -> None:
        """End all of it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def lasting(name: str, begin: Begin, log: FilteringBoundLogger, pause_s: float = PAUSE_S) -> None:
    """Do work until it is cancelled, again and again where it ends by itself.

    Args:
        name: of the work.
        begin: begins it.
        log: is told of each end.
        pause_s: until it is begun again, in seconds.
    """
    while True:
        try:
            await begin()
        except Exception:  # whatever it was, the server would go on without this part of it
            log.exception("part of the server begins again", part=name)
        else:
            log.error("part of the server begins again", part=name)
        await asyncio.sleep(pause_s)
