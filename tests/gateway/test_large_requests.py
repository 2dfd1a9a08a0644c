"""Requests of many bytes: how many of them are kept, for how long, and that they take no second worker with them."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.attempts import MAX_RETRIED_BYTES
from gateway.errors import CancelledByOperator
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import (
    BEGUN,
    METHODS,
    STREAM_STREAM,
    UNARY_STREAM,
    UNARY_UNARY,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually

LIMIT_S = 10.0
MIB = 1024 * 1024


class Gate:
    """Answers that begin, with one message, once `opens` is set, and then hold."""

    def __init__(self) -> None:
        self.calls = 0
        self.opens = asyncio.Event()

    async def stream(self, source: Any, context: Any) -> AsyncIterator[bytes]:
        self.calls += 1
        await self.opens.wait()
        await context.send_initial_metadata(BEGUN)
        yield b"1"
        await asyncio.Event().wait()

    async def unary(self, source: Any, context: Any) -> bytes:
        self.calls += 1
        await asyncio.Event().wait()
        return b""


async def sent(message: bytes) -> AsyncIterator[bytes]:
    yield message
    await asyncio.Event().wait()


async def answer_b(body: bytes, context: Any) -> bytes:
    return b"b"


@pytest.mark.parametrize("method", [UNARY_STREAM, STREAM_STREAM])
async def test_requests_that_have_not_begun_are_bounded_by_their_bytes(tmp_path: Path, method: str) -> None:
    gate = Gate()
    large = request(prompt="x" * MIB)
    async with relay_under_test(tmp_path, {method: gate.stream}, max_held_bytes=2.5 * MIB) as relay:

        def begin() -> Any:
            return relay.call(method)(sent(large) if METHODS[method].request_streams else large, timeout=LIMIT_S)

        calls = [begin() for _ in range(2)]
        await eventually(lambda: gate.calls == 2)
        failure = await failure_of(begin())
        assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert failure.metadata == {"scope": "request bytes", "depth": "2"}
        gate.opens.set()
        for call in calls:
            assert await call.read()
        third = begin()
        assert await third.read() == b"1"
        for call in (*calls, third):
            call.cancel()
        await eventually(lambda: not len(relay.parts.requests))
        assert relay.parts.admission.held_bytes == 0


@pytest.mark.parametrize("method", [UNARY_STREAM, STREAM_STREAM])
async def test_a_request_that_has_begun_is_not_kept(tmp_path: Path, method: str) -> None:
    gate = Gate()
    size, count = 4 * MIB - 1000, 6

    # The worker is of the same process: only one that reads by hand does not keep what it read.
    async def worker(source: Any, context: Any) -> Any:
        await context.read()
        async for message in gate.stream(None, context):
            await context.write(message)

    large = request(prompt="x" * size)
    gate.opens.set()
    tracemalloc.start()
    try:
        async with relay_under_test(tmp_path, {method: worker}) as relay:
            before = tracemalloc.get_traced_memory()[0]
            calls: list[Any] = []
            for _ in range(count):
                body: Any = sent(large) if METHODS[method].request_streams else large
                calls.append(relay.call(method)(body, timeout=LIMIT_S))
                assert await calls[-1].read() == b"1"
            kept = tracemalloc.get_traced_memory()[0] - before
            for call in calls:
                call.cancel()
    finally:
        tracemalloc.stop()
    assert kept < size


async def test_a_large_request_takes_no_second_worker_with_it(tmp_path: Path) -> None:
    gate = Gate()
    async with relay_under_test(tmp_path, {UNARY_UNARY: gate.unary}, {UNARY_UNARY: answer_b}) as relay:
        call = relay.call(UNARY_UNARY)(request(prompt="x" * MAX_RETRIED_BYTES), timeout=LIMIT_S)
        await eventually(lambda: gate.calls == 1)
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
        assert (failure.reason, relay.pool.acquired) == ("WORKER_RESTARTING", 1)


async def test_a_request_that_is_ended_just_after_its_worker_died_is_not_tried_again(tmp_path: Path) -> None:
    gate = Gate()
    async with relay_under_test(tmp_path, {UNARY_UNARY: gate.unary}, {UNARY_UNARY: answer_b}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: gate.calls == 1)
        (one,) = relay.parts.requests
        # The connection breaks first and the supervisor tells of it later: the operator comes in between.
        worker = relay.pool.workers[0]
        worker.instance.exit.add_done_callback(lambda _: one.abort(CancelledByOperator("r")))
        await worker.die()
        failure = await failure_of(call)
        assert (failure.reason, relay.pool.acquired) == ("CANCELLED_BY_OPERATOR", 1)
