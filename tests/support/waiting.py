"""Waiting for a condition with a limit, so that no test sleeps for a guessed time."""

import asyncio
import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.005


async def eventually(predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait on the event loop until `predicate` holds.

    Raises:
        TimeoutError: it did not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {predicate}")
        await asyncio.sleep(POLL_INTERVAL_S)


def wait_until(predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait without an event loop until `predicate` holds.

    Raises:
        TimeoutError: it did not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {predicate}")
        time.sleep(POLL_INTERVAL_S)
