"""A call to a worker whose request is a client's stream.

The library sets the status of such a call to INTERNAL when a write fails because the worker ended first, also over the
worker's own status (`grpc.aio._call._StreamRequestMixin._write`, 1.85). So the worker's own is noted when it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

WRITE_FAILED = "Internal error from Core"  # the library's text
STATUS_LIMIT_S = 0.05

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Status:
    code: grpc.StatusCode
    details: str
    trailers: Any


class StreamCall:
    """A bidirectional call over bytes that pumps a client's stream to the worker and keeps the worker's status."""

    def __init__(self, call: Any, first: bytes, source: AsyncIterator[bytes]) -> None:
        """Write `first` and then all of `source` to `call`, a call of the library without a request iterator."""
        self._call = call
        self._status: _Status | None = None
        self._has_status = asyncio.Event()
        call.add_done_callback(self._note)
        self._pump = asyncio.create_task(self._write_all(first, source))

    def cancel(self) -> None:
        """End the call, if it has not ended, and the pump."""
        self._pump.cancel()
        self._call.cancel()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have `callback` called when the call has a status; it may be called twice."""
        self._call.add_done_callback(callback)

    async def initial_metadata(self) -> Any:
        """Return the worker's initial metadata; empty where the call ended before it came."""
        return await self._call.initial_metadata()

    async def trailing_metadata(self) -> Any:
        """Return the worker's trailers."""
        return self._status.trailers if self._status is not None else await self._call.trailing_metadata()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the worker's answers.

        Raises:
            AioRpcError: the worker's status, where it is not OK.
        """
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as error:
            status = await self._true_status(error)
            if status is None:
                raise
            if status.code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    status.code, error.initial_metadata(), status.trailers, status.details
                ) from None

    async def _true_status(self, error: grpc.aio.AioRpcError) -> _Status | None:
        """Return the worker's own status where `error` is about a failed write and the status comes in time."""
        if error.details() != WRITE_FAILED:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STATUS_LIMIT_S):
                await self._has_status.wait()
        return self._status

    async def _write_all(self, first: bytes, source: AsyncIterator[bytes]) -> None:
        """Write a message at a time, so that a slow worker slows the client."""
        try:
            await self._call.write(first)
            del first  # it may be large, and the stream long
            async for message in source:
                await self._call.write(message)
            await self._call.done_writing()
        except (grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._call.cancel()  # one side ended first; a call that has its status keeps it

    def _note(self, _call: Any) -> None:
        """Keep the status that the call just got, unless it is the library's about a write."""
        details: str = _at_once(self._call.details())
        if self._status is None and details != WRITE_FAILED:
            code = _at_once(self._call.code())
            self._status = _Status(code, details, _at_once(self._call.trailing_metadata()))
            self._has_status.set()


def _at_once(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Return what a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("the call has no status")
