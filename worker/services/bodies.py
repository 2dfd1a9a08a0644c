"""Reads the bodies of requests: small ones at once, large ones beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from worker.errors import QueueFull

T = TypeVar("T")

# A body of this size, of the smallest fields, takes some 15 ms to read; as many may come at once as may run and wait.
INLINE_BYTES = 16 << 10
MAX_THREADS = 2
# Large bodies that are read or wait for it.
MAX_WAITING = 64


class BodyReader:
    """Has bodies parsed and checked, so that none of them holds up the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="bodies")
        self._num_waiting = 0

    async def read(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        """Return what `parse` makes of a body.

        Raises:
            QueueFull: too many large bodies wait.
            Exception: whatever `parse` raises.
        """
        if len(body) <= INLINE_BYTES:
            return parse(body)
        if self._num_waiting >= MAX_WAITING:
            raise QueueFull(self._num_waiting)
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, parse, body)
        finally:
            self._num_waiting -= 1
