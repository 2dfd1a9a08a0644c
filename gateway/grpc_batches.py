"""Has the library free what it holds for a call that was cancelled: it does not of itself (grpc#43360).

What the library does on a call it does in batches, and it frees a batch only where a task waits for it until it has
succeeded. Each stream that a client cancels leaves one or two that nobody waits for any more, or that fail because the
client is gone: some 400 bytes, for ever, and several thousand where a request is on its way just then. No way of
calling the library avoids that: to wait in a task that nobody cancels leaves those that fail.

So the function of the library that runs a batch is replaced here. The library's own still does the work, but is run to
its end when the batch is done, whatever became of the task that began it. Other versions than those that this was
tested with are left as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

import grpc

VERSIONS = ("1.85.",)  # how those begin that need this

RunBatch = Callable[[Any, tuple[Any, ...], asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]


def free_batches() -> bool:
    """Have every batch of this process freed, of servers and channels; say whether this version needed that."""
    if not grpc.__version__.startswith(VERSIONS):
        return False
    library: Any = importlib.import_module("grpc._cython.cygrpc")
    if not isinstance(library.execute_batch, BatchRunner):
        library.execute_batch = BatchRunner(library.execute_batch)
    return True


class BatchRunner:
    """Stands for the library's `execute_batch`."""

    def __init__(self, library: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._library = library

    async def __call__(self, call: Any, operations: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch.

        Raises:
            ExecuteBatchError: it failed; the library's own.
        """
        done = loop.create_future()
        batch = _Batch(loop, done)
        batch.begin(self._library(call, operations, batch))
        await done


class _Batch:
    """One batch. For the library this is the loop, and the future that it waits for."""

    __slots__ = ("_done", "_loop", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
        """Tell `done`, a future of `loop`, how the batch ends; it may be cancelled."""
        self._loop = loop
        self._done = done
        self._running: Coroutine[Any, Any, None] | None = None

    def begin(self, running: Coroutine[Any, Any, None]) -> None:
        """Have the library begin the batch; `running` waits for it then, until it is done."""
        self._running = running
        running.send(None)

    def create_future(self) -> Self:
        return self

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back at once: the library does so on the loop's own thread, unless another loop took the news."""
        if _running_loop() is self._loop:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    def __await__(self) -> Generator[Self]:
        yield self

    def cancelled(self) -> bool:
        """Say that someone waits, always."""
        return False

    def set_result(self, _result: None) -> None:
        """The batch has succeeded."""
        self._finish()
        if not self._done.done():
            self._done.set_result(None)

    def set_exception(self, error: Exception) -> None:
        """The batch has failed."""
        self._finish()
        if not self._done.done():
            self._done.set_exception(error)

    def _finish(self) -> None:
        """Have the library take what came and free the rest, which it does where it believes in success."""
        running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(StopIteration):
                running.send(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread, None where none runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
