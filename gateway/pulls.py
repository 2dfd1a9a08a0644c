"""The pulls that run: one of a repository at a time, which everyone joins who wants the same.

A pull goes on as long as somebody follows it; when the last one goes, its process is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

from gateway.errors import QueueFull, ServerDraining
from gateway.hub.messages import Done, Order, Progress

MAX_PULLS = 4
SKIPPED = "skipped"

Run = Callable[[Order, Callable[[Progress], None]], Awaitable[Done]]
"""Downloads; raises GatewayError."""


class Pulls:
    """All pulls of one server. Lives on one event loop.

    Args:
        run: downloads.
        listed: is awaited after a download, and brings what came into the catalogue.
    """

    def __init__(self, run: Run, listed: Callable[[], Awaitable[object]]) -> None:
        self._run = run
        self._listed = listed
        self._pulls: dict[str, _Pull] = {}

    def is_pulling(self, repository: str) -> bool:
        """Say whether a repository is being downloaded."""
        return repository in self._pulls

    async def follow(self, order: Order) -> AsyncGenerator[Progress]:
        """Pull, or join the pull of the same order, and yield how far it is until the model is in the catalogue.

        Another pull of the same repository is waited for.

        Raises:
            GatewayError: it cannot be had, or too many pulls run already.
        """
        while (pull := self._pulls.get(order.repository)) is not None and not pull.can_be_joined(order):
            yield Progress("waiting")
            await pull.ended.wait()
        if pull is None:
            pull = self._start(order)
        pull.followers += 1
        try:
            async for progress in pull.progress():
                yield progress
            if pull.task.cancelled():
                raise ServerDraining
            pull.task.result()
        finally:
            pull.followers -= 1
            if not pull.followers:
                pull.task.cancel()

    async def close(self) -> None:
        """End every pull; what came is kept."""
        tasks = [pull.task for pull in self._pulls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, order: Order) -> _Pull:
        if len(self._pulls) >= MAX_PULLS:
            raise QueueFull("pulls", len(self._pulls))
        pull = self._pulls[order.repository] = _Pull(order)
        pull.task = asyncio.create_task(self._work(pull), name=f"pull-{order.repository}")
        pull.task.add_done_callback(partial(self._end, pull))
        return pull

    async def _work(self, pull: _Pull) -> None:
        await self._run(pull.order, pull.take)
        await self._listed()

    def _end(self, pull: _Pull, task: asyncio.Task[None]) -> None:
        del self._pulls[pull.order.repository]
        if not task.cancelled():
            task.exception()  # is told to those who follow, if there is still one
        pull.end()


class _Pull:
    """One pull and how far it is."""

    task: asyncio.Task[None]

    def __init__(self, order: Order) -> None:
        self.order = order
        self.followers = 0
        self.ended = asyncio.Event()
        self._skipped: list[Progress] = []
        self._newest: Progress | None = None
        self._changed = asyncio.Event()

    def can_be_joined(self, order: Order) -> bool:
        """Say whether it brings what `order` wants, and nobody is ending it."""
        return self.order == order and not self.task.cancelling()

    def take(self, progress: Progress) -> None:
        """Note how far it is."""
        if progress.phase == SKIPPED:
            self._skipped.append(progress)
        else:
            self._newest = progress
        self._wake()

    def end(self) -> None:
        """Note that it is over."""
        self.ended.set()
        self._wake()

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield what is skipped, and the newest progress whenever there is some, until the end."""
        told = 0
        last: Progress | None = None
        while True:
            changed = self._changed
            if told < len(self._skipped):
                told += 1
                yield self._skipped[told - 1]
            elif self._newest is not last and self._newest is not None:
                last = self._newest
                yield last
            elif self.ended.is_set():
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
