"""The library frees what it held for calls that were cancelled."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from bench.load.verdicts import MIB
from gateway.footprint import footprint_bytes
from gateway.grpc_batches import BatchRunner, free_batches

STREAMS = 60
METHOD = "/test/Stream"
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class Library:
    """Runs batches as the library does: `tell` says how they ended, and only what is waited for is freed."""

    def __init__(self) -> None:
        self.freed: list[object] = []
        self.tell: Callable[[Exception | None], object] = lambda _error: None

    async def execute_batch(self, call: object, _operations: tuple[object, ...], loop: Any) -> None:
        future = loop.create_future()

        def functor(error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.tell = lambda error: loop.call_soon_threadsafe(functor, error)
        await future
        self.freed.append(call)


async def begun(library: Library) -> asyncio.Task[None]:
    waiting = asyncio.create_task(BatchRunner(library.execute_batch)("call", (), asyncio.get_running_loop()))
    await asyncio.sleep(0)
    return waiting


async def test_a_batch_is_freed_when_it_has_succeeded() -> None:
    library = Library()
    waiting = await begun(library)
    library.tell(None)
    await waiting
    assert library.freed == ["call"]


async def test_a_batch_that_nobody_waits_for_is_freed() -> None:
    library = Library()
    waiting = await begun(library)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert library.freed == []
    library.tell(None)
    assert library.freed == ["call"]


async def test_a_batch_that_failed_is_freed_and_says_so() -> None:
    library = Library()
    waiting = await begun(library)
    library.tell(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await waiting
    assert library.freed == ["call"]


async def test_news_that_another_thread_takes_come_to_the_loop() -> None:
    library = Library()
    waiting = await begun(library)
    await asyncio.to_thread(library.tell, None)
    await waiting
    assert library.freed == ["call"]


async def test_the_installed_library_keeps_nothing_of_a_status_that_came_too_late() -> None:
    assert free_batches(), "look whether this version of grpcio still needs gateway/grpc_batches.py, and say so there"
    large = (("x-large", "x" * MIB),)

    async def answer(_source: Any, context: Any) -> None:
        try:
            while True:
                await context.write(b"message")
        except asyncio.CancelledError:
            await context.abort(grpc.StatusCode.ABORTED, "", large)

    handler = grpc.stream_stream_rpc_method_handler(answer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        before = await cancelled_streams(channel, 5)
        grown = await cancelled_streams(channel, STREAMS) - before
    await server.stop(None)
    assert grown < STREAMS / 3 * MIB


async def cancelled_streams(channel: grpc.aio.Channel, count: int) -> int:
    """Cancel streams one after the other; return the memory that this process, with the server, has then."""
    for _ in range(count):
        call: Any = channel.unary_stream(METHOD)(b"", timeout=10)
        await call.read()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
    return footprint_bytes(os.getpid()) or 0
