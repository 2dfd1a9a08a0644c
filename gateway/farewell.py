"""Ends the streams of the gateway's own services, such as watches, with a status before the server is gone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import Any

import grpc
import grpc.aio

from gateway.errors import ServerDraining
from gateway.status import status_of


class Farewell(grpc.aio.ServerInterceptor):
    """Knows the open streams; what a caller would else see of a server that ends is a connection that breaks.

    Args:
        relayed: full names of the methods that are workers', which end as requests do.
    """

    def __init__(self, relayed: Container[str]) -> None:
        self._relayed = relayed
        self._is_over = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._open: set[asyncio.Future[Any]] = set()

    async def say(self, limit_s: float) -> None:
        """End every stream, and wait so many seconds at most until the handlers are gone."""
        self._is_over.set()
        try:
            async with asyncio.timeout(limit_s):
                await self._is_empty.wait()
        except TimeoutError:
            return

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the handler of a method, so that its streams can be ended where it has some."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method in self._relayed or handler.request_streaming:
            return handler
        if not handler.response_streaming or not inspect.iscoroutinefunction(handler.unary_stream):
            return handler
        return grpc.unary_stream_rpc_method_handler(
            partial(self._stream, handler.unary_stream),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _stream(self, behaviour: Callable[[Any, Any], Awaitable[None]], request: Any, context: Any) -> None:
        answering = asyncio.ensure_future(behaviour(request, context))
        over = asyncio.ensure_future(self._is_over.wait())
        self._open.add(answering)
        self._is_empty.clear()
        try:
            await asyncio.wait([answering, over], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return
            await _cancelled(answering)
            await context.abort(*status_of(ServerDraining()))
        finally:
            over.cancel()
            await _cancelled(answering)
            self._open.discard(answering)
            if not self._open:
                self._is_empty.set()


async def _cancelled(answering: asyncio.Future[Any]) -> None:
    """Have a handler end, and take note of how, so that nobody is told that it was forgotten."""
    answering.cancel()
    await asyncio.wait([answering])
    if not answering.cancelled():
        answering.exception()
