"""Calls through a relay, and workers that answer them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.support.scripted_worker import (
    BEGUN,
    METHODS,
    RelayUnderTest,
    request,
)

LIMIT_S = 10.0
STANDSTILL_S = 0.3


class Held:
    """An answer that begins, sends `messages`, and then waits until it is cancelled."""

    def __init__(self, messages: int = 1, initial: Any = BEGUN) -> None:
        self.messages = messages
        self.initial = initial
        self.calls = 0
        self.cancelled = 0

    async def _hold(self, context: Any) -> None:
        self.calls += 1
        if self.initial is not None:
            await context.send_initial_metadata(self.initial)

    async def unary(self, source: Any, context: Any) -> bytes:
        try:
            await self._hold(context)
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        return b""

    async def stream(self, source: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            await self._hold(context)
            for number in range(self.messages):
                yield b"%d" % number
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    @property
    def answers(self) -> dict[str, Any]:
        return {name: self.stream if kind.response_streams else self.unary for name, kind in METHODS.items()}


async def sent(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def begin(relay: RelayUnderTest, method: str, **options: Any) -> Any:
    body: Any = sent(request()) if METHODS[method].request_streams else request()
    return relay.call(method)(body, **{"timeout": LIMIT_S, **options})


async def answer_b(body: bytes, context: Any) -> bytes:
    return b"b"


async def stream_b(body: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"b"
