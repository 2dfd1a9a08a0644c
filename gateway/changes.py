"""Who is told when models change: each reader has at most one waiting change a model."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable

from gateway.model_status import ModelStatus


class Changes:
    """Gives the newest status of changed models to every reader.

    Args:
        status: the status of a model now.
    """

    def __init__(self, status: Callable[[str], ModelStatus]) -> None:
        self._status = status
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()

    def tell(self, model: str) -> None:
        """Have every reader see that `model` changed."""
        for watch in list(self._watches):
            watch.tell(model)

    def watch(self) -> "Watch":
        """Return a reader of every change from now on; it ends by being dropped."""
        watch = Watch(self._status)
        self._watches.add(watch)
        return watch


class Watch(AsyncIterator[ModelStatus]):
    """One reader: changes of a model that it has not read yet merge into one."""

    def __init__(self, status: Callable[[str], ModelStatus]) -> None:
        self._status = status
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()

    def tell(self, model: str) -> None:
        """Note that `model` changed."""
        self._changed[model] = None
        self._wake.set()

    @property
    def unread(self) -> tuple[str, ...]:
        """The models whose changes wait to be read."""
        return tuple(self._changed)

    async def __anext__(self) -> ModelStatus:
        """Wait for a change; the caller's own life is the limit."""
        await self._wake.wait()
        model = next(iter(self._changed))
        del self._changed[model]
        if not self._changed:
            self._wake.clear()
        return self._status(model)
