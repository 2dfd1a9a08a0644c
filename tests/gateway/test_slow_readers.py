"""Clients that open a stream and then take nothing: they hold no more than their limit allows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.errors import CancelledByOperator
from gateway.model_status import Exit, ExitCause
from gateway.requests import Request, RequestKey
from gateway.write_watch import WriteWatch
from tests.gateway.statuses import failure_of, seen
from tests.support.scripted_worker import (
    METHODS,
    STREAM_STREAM,
    UNARY_STREAM,
    RelayUnderTest,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually

LIMIT_S = 10.0
STREAMS = [name for name, kind in METHODS.items() if kind.response_streams]


async def flood(source: Any, context: Any) -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 100_000


async def sent(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def stuck(relay: RelayUnderTest, method: str, **options: Any) -> tuple[Any, Request]:
    """Open a stream, take one message, and wait until a write to this client lasts."""
    body: Any = sent(request(request_id="slow")) if METHODS[method].request_streams else request(request_id="slow")
    call = relay.call(method)(body, **options)
    assert await call.read()
    (one,) = relay.parts.requests
    loop = asyncio.get_running_loop()
    last, since_s = one.events_sent, loop.time()

    def stands_still() -> bool:
        nonlocal last, since_s
        if one.events_sent != last:
            last, since_s = one.events_sent, loop.time()
        return one.is_writing and loop.time() - since_s > 0.2

    await eventually(stands_still, LIMIT_S)
    return call, one


async def status_after_all(call: Any) -> Any:
    """Take what still waits for the client, and return the status behind it."""
    try:
        while True:
            await call.read()
    except grpc.aio.AioRpcError as error:
        return seen(error)


@pytest.mark.parametrize("method", STREAMS)
async def test_a_client_that_takes_nothing_is_ended_at_the_limit(tmp_path: Path, method: str) -> None:
    async with relay_under_test(tmp_path, {method: flood}, slow_reader_s=1.0) as relay:
        call, _ = await stuck(relay, method, timeout=60.0)
        await eventually(lambda: not len(relay.parts.requests) and relay.pool.holds == 0, LIMIT_S)
        failure = await status_after_all(call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")
    assert float(failure.metadata["waited_s"]) >= 1.0


async def test_a_client_that_takes_nothing_is_ended_at_the_servers_maximum(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {UNARY_STREAM: flood}, max_request_s=1.5) as relay:
        call, _ = await stuck(relay, UNARY_STREAM)
        await eventually(lambda: not len(relay.parts.requests) and relay.pool.holds == 0, LIMIT_S)
        assert (await status_after_all(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("method", STREAMS)
async def test_an_operator_ends_a_request_whose_client_takes_nothing(tmp_path: Path, method: str) -> None:
    async with relay_under_test(tmp_path, {method: flood}, max_requests_per_model=1) as relay:
        call, one = await stuck(relay, method, timeout=60.0)
        failure = await failure_of(relay.call(method)(sent(request()) if method == STREAM_STREAM else request()))
        assert failure.reason == "QUEUE_FULL"
        one.abort(CancelledByOperator("slow"))
        one.abort(CancelledByOperator("slow"))
        await eventually(lambda: not len(relay.parts.requests) and relay.pool.holds == 0, LIMIT_S)
        body: Any = sent(request(request_id="slow")) if method == STREAM_STREAM else request(request_id="slow")
        again = relay.call(method)(body, timeout=LIMIT_S)
        assert await again.read()
        again.cancel()
        assert (await status_after_all(call)).reason == "CANCELLED_BY_OPERATOR"


async def test_a_client_that_takes_nothing_keeps_its_place_until_it_is_ended(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {UNARY_STREAM: flood}, max_requests_per_model=1, slow_reader_s=30.0) as relay:
        call, _ = await stuck(relay, UNARY_STREAM, timeout=60.0)
        relay.pool.workers[0].give_up(Exit(ExitCause.UNLOADED))
        await eventually(lambda: relay.pool.holds == 0, LIMIT_S)
        assert (await failure_of(relay.call(UNARY_STREAM)(request()))).reason == "QUEUE_FULL"
        call.cancel()
        await eventually(lambda: not len(relay.parts.requests), LIMIT_S)


async def test_a_slow_client_that_takes_something_now_and_then_is_not_ended(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {UNARY_STREAM: flood}, slow_reader_s=1.0) as relay:
        call, one = await stuck(relay, UNARY_STREAM, timeout=60.0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() - began_s < 2.5:  # longer than the limit, and never standing still for so long
            before, since_s = one.events_sent, loop.time()
            while one.events_sent == before:
                assert await call.read()
            await eventually(lambda since_s=since_s: loop.time() - since_s > 0.2, LIMIT_S)
        assert one.error is None
        assert [each.key.request_id for each in relay.parts.requests] == ["slow"]
        call.cancel()


async def test_a_write_that_begins_after_the_request_was_ended_is_broken_off_too() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    one = Request(RequestKey("", "r"), "m", UNARY_STREAM, task)
    one.called(None, lambda: None)  # type: ignore[arg-type]
    one.abort(CancelledByOperator("r"))
    one.is_writing = True
    watch = WriteWatch(one, asyncio.get_running_loop().time() + 600.0, 0.1)
    await asyncio.wait([task], timeout=LIMIT_S)
    watch.close()
    assert task.cancelled()


async def test_a_request_whose_status_is_on_its_way_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    one = Request(RequestKey("", "r"), "m", UNARY_STREAM, task)
    one.leaves()
    one.abort(CancelledByOperator("r"))
    assert (one.error, task.cancelling()) == (None, 0)
    task.cancel()
