"""One task that does what it is given, in its order: the single writer of what many want to change."""

import asyncio
from collections.abc import Callable


class Writer:
    """Does one thing after the other, and after each of them what always follows. Lives on one event loop.

    Args:
        follow: is called after each thing that was done.
    """

    def __init__(self, follow: Callable[[], None]) -> None:
        self._follow = follow
        self._queue: asyncio.Queue[tuple[Callable[[], None], asyncio.Future[None] | None]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether what is given is done; a writer that broke does nothing more."""
        return self._task is not None and not self._task.done()

    @property
    def failure(self) -> BaseException | None:
        """What ended it, where that was not `stop`."""
        return self._task.exception() if self._task is not None and self._task.done() else None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._write(), name="writer")

    async def stop(self) -> None:
        """Do nothing more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def post(self, work: Callable[[], None]) -> None:
        """Have something done later."""
        self._queue.put_nowait((work, None))

    async def submit(self, work: Callable[[], None]) -> None:
        """Have something done and wait until it is, which takes one turn; where nothing is done, not at all."""
        task = self._task
        if task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((work, done))
        await asyncio.wait([done, task], return_when=asyncio.FIRST_COMPLETED)
        if not done.done() and not task.cancelled():
            task.result()  # The writer is broken: whoever asks is told, and does not wait for ever.

    async def _write(self) -> None:
        while True:
            work, done = await self._queue.get()
            work()
            self._follow()
            if done is not None and not done.done():
                done.set_result(None)
