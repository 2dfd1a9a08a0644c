"""Settling futures of the event loop that somebody may have given up by then."""

import asyncio


def resolve(future: asyncio.Future[object], result: object) -> None:
    """Set the result, unless the future is settled."""
    if not future.done():
        future.set_result(result)


def reject(future: asyncio.Future[object], error: Exception) -> None:
    """Set the exception, unless the future is settled."""
    if not future.done():
        future.set_exception(error)


def retrieve(future: asyncio.Future[object]) -> None:
    """Look at the outcome, so that one which nobody waited for makes no noise when it is collected."""
    if not future.cancelled():
        future.exception()
