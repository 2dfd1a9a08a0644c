"""Work that the event loop has the engine's thread do between two ticks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """One piece of work; once it has begun it is done, whether or not its caller still waits.

    Args:
        work: what is to be done.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done: Future[T] = Future()

    def run(self) -> None:
        """Do the work, unless its caller is gone; on the engine's thread."""
        if not self._done.set_running_or_notify_cancel():
            return
        try:
            self._done.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 (handed to whoever asked for the work)
            self._done.set_exception(error)

    async def wait(self) -> T:
        """Return what the work returned, or raise what it raised; on the event loop."""
        return await asyncio.wrap_future(self._done)
