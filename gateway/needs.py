"""What loads take of memory: as estimated, and no less than what the same load was seen to hold the last time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError
from gateway.model_status import LoadOptions


class Size(NamedTuple):
    """What a load takes of memory, in bytes.

    Attributes:
        most: with all requests that it lets run at once, each as long as can be.
        least: with a single one.
    """

    most: int
    least: int


Estimate = Callable[[str, LoadOptions], Awaitable[Size]]
"""Returns what a load of a model with these options takes."""
Stamp = Callable[[str], object]
"""Returns what changes when a file of a model's checkpoint changes; it may block."""


async def nothing_needed(_model: str, _options: LoadOptions) -> Size:
    """Find that a model takes nothing."""
    return Size(0, 0)


@dataclass(frozen=True, slots=True)
class Need:
    """What a load takes.

    Attributes:
        options: of that load.
        size: as estimated.
        measured_bytes: the most that the same load was seen to hold, 0 where it was not seen.
    """

    options: LoadOptions
    size: Size
    measured_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a worker held at most, of which checkpoint and with which options."""

    stamp: object
    options: LoadOptions
    peak_bytes: int


class Needs:
    """Finds out what models take, each at most once at a time.

    Args:
        estimate: reads headers.
        stamp: tells whether a checkpoint changed.
        log: takes why it was not found out.
    """

    def __init__(self, estimate: Estimate, stamp: Stamp, log: FilteringBoundLogger) -> None:
        self._estimate = estimate
        self._stamp = stamp
        self._log = log
        self._seen: dict[str, _Seen] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note(self, model: str, stamp: object, options: LoadOptions, peak_bytes: int) -> None:
        """Remember what a worker held that is gone; of the same load the most counts."""
        seen = self._seen.get(model)
        if seen is not None and (seen.stamp, seen.options) == (stamp, options):
            peak_bytes = max(peak_bytes, seen.peak_bytes)
        self._seen[model] = _Seen(stamp, options, peak_bytes)

    def ask(self, model: str, options: LoadOptions, tell: Callable[[Need], None]) -> None:
        """Have `tell` called with what a load takes, once that is known; nothing where it is being asked already.

        Where it cannot be known now nothing is told, and it may be asked again.
        """
        if model not in self._asking:
            task = self._asking[model] = asyncio.create_task(self._find(model, options, tell))
            task.add_done_callback(partial(self._asked, model))

    def is_asking(self, model: str) -> bool:
        """Say whether what a model takes is being asked."""
        return model in self._asking

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()

    async def _find(self, model: str, options: LoadOptions, tell: Callable[[Need], None]) -> None:
        try:
            stamp = await asyncio.to_thread(self._stamp, model)
            size = await self._estimate(model, options)
        except (GatewayError, RuntimeError) as error:  # RuntimeError: the system starts no thread for it
            self._log.warning("size of a load not known", model=model, problem=type(error).__name__)
            return
        seen = self._seen.get(model)
        is_same = seen is not None and (seen.stamp, seen.options) == (stamp, options)
        self._asking.pop(model, None)  # whoever is told may ask again at once
        tell(Need(options, size, seen.peak_bytes if seen is not None and is_same else 0))

    def _asked(self, model: str, task: asyncio.Task[None]) -> None:
        if self._asking.get(model) is task:
            del self._asking[model]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("size of a load not found out", model=model, exc_info=error)
