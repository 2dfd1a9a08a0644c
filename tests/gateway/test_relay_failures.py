"""How RPCs end that lose their client, their worker or their time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.errors import ModelBackingOff
from gateway.model_status import Exit, ExitCause
from tests.gateway.relay_calls import LIMIT_S, STANDSTILL_S, Held, answer_b, begin, stream_b
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import (
    BEGUN,
    EOF,
    METHODS,
    MODEL,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    UNARY_UNARY,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually


@pytest.mark.parametrize("method", METHODS)
async def test_a_client_that_goes_away_ends_its_call_at_once(tmp_path: Path, method: str) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        call = begin(relay, method)
        await eventually(lambda: held.calls == 1)
        call.cancel()
        await eventually(lambda: held.cancelled == 1 and relay.pool.holds == 0 and not len(relay.parts.requests))
        assert relay.ring.past(1)[0].fields["status"] == "CANCELLED"


async def test_a_client_that_goes_away_while_it_does_not_read_ends_its_call_at_once(tmp_path: Path) -> None:
    held = Held()
    sent_messages = 0

    async def flood(body: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal sent_messages
        try:
            while True:
                yield b"x" * 100_000
                sent_messages += 1
        finally:
            held.cancelled += 1

    async with relay_under_test(tmp_path, {UNARY_STREAM: flood}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        assert await call.read()
        call.cancel()
        await eventually(lambda: held.cancelled == 1 and relay.pool.holds == 0 and not len(relay.parts.requests))


async def test_a_slow_reader_slows_its_worker_and_not_the_memory(tmp_path: Path) -> None:
    sent_messages = 0
    count = 600

    async def flood(body: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal sent_messages
        for _ in range(count):
            yield b"x" * 100_000
            sent_messages += 1

    async with relay_under_test(tmp_path, {UNARY_STREAM: flood}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=50.0)
        assert await call.read()
        loop = asyncio.get_running_loop()
        last_sent, since_s = sent_messages, loop.time()

        def stands_still() -> bool:
            nonlocal last_sent, since_s
            if sent_messages != last_sent:
                last_sent, since_s = sent_messages, loop.time()
            return loop.time() - since_s > STANDSTILL_S

        await eventually(stands_still)
        assert sent_messages < count / 2
        received = 1
        while await call.read() is not EOF:
            received += 1
        assert received == count


@pytest.mark.parametrize("method", METHODS)
async def test_the_deadline_of_the_client_reaches_the_worker(tmp_path: Path, method: str) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        failure = await failure_of(begin(relay, method, timeout=0.3))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: held.cancelled == 1 and not len(relay.parts.requests))


async def test_a_request_ends_at_the_servers_maximum(tmp_path: Path) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers, max_request_s=0.3) as relay:
        failure = await failure_of(relay.call(UNARY_STREAM)(request()))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: held.cancelled == 1)


@pytest.mark.parametrize("method", [UNARY_STREAM, STREAM_STREAM])
async def test_a_worker_that_dies_mid_stream_ends_the_stream_at_once(tmp_path: Path, method: str) -> None:
    held = Held(messages=3)
    async with relay_under_test(tmp_path, held.answers) as relay:
        call = begin(relay, method)
        messages = aiter(call)
        for _ in range(3):
            await anext(messages)
        await relay.pool.workers[0].die(Exit(ExitCause.DIED, signal=9))
        failure = await asyncio.wait_for(failure_of(call), LIMIT_S / 2)  # long before the stream's own deadline
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_DIED")
    assert failure.metadata == {"model": MODEL, "signal": "SIGKILL", "events_sent": "3"}
    assert failure.trailers["grpc-retry-pushback-ms"] == "-1"
    assert "RetryInfo" in failure.details


@pytest.mark.parametrize("method", [UNARY_UNARY, STREAM_UNARY])
async def test_a_worker_that_dies_after_it_began_is_told_for_unary_answers_too(tmp_path: Path, method: str) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers, {UNARY_UNARY: answer_b}) as relay:
        call = begin(relay, method)
        await eventually(lambda: held.calls == 1)
        assert relay.pool.acquired == 1
        await eventually(lambda: any(one.instance is not None for one in relay.parts.requests))
        await relay.pool.workers[0].die(Exit(ExitCause.DIED, code=70))
        failure = await failure_of(call)
    assert failure.reason == "WORKER_DIED"
    assert failure.metadata == {"model": MODEL, "exit_code": "70", "events_sent": "0"}


async def test_a_stalled_worker_ends_the_stream_although_its_connection_stands(tmp_path: Path) -> None:
    held = Held(messages=2)
    async with relay_under_test(tmp_path, held.answers) as relay:
        call = begin(relay, UNARY_STREAM)
        messages = aiter(call)
        for _ in range(2):
            await anext(messages)
        relay.pool.workers[0].give_up(Exit(ExitCause.STALLED))
        failure = await failure_of(call)
        await eventually(lambda: held.cancelled == 1)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_STALLED")
    assert failure.metadata == {"model": MODEL, "events_sent": "2"}


async def test_a_model_unloaded_under_a_stream_says_so(tmp_path: Path) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        call = begin(relay, UNARY_STREAM)
        await anext(aiter(call))
        relay.pool.workers[0].give_up(Exit(ExitCause.UNLOADED))
        failure = await failure_of(call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING")


@pytest.mark.parametrize("method", [UNARY_UNARY, UNARY_STREAM])
async def test_a_request_that_had_not_begun_is_retried_on_the_next_worker(tmp_path: Path, method: str) -> None:
    held = Held(initial=None, messages=0)
    second = {UNARY_UNARY: answer_b, UNARY_STREAM: stream_b}
    async with relay_under_test(tmp_path, held.answers, second) as relay:
        call = relay.channel.unary_stream(method)(request(), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        await relay.pool.workers[0].die()
        assert [message async for message in call] == [b"b"]
        assert relay.pool.acquired == 2
        await eventually(lambda: relay.pool.holds == 0)


async def test_a_worker_that_stalls_before_it_begins_is_retried_too(tmp_path: Path) -> None:
    held = Held(initial=None)
    async with relay_under_test(tmp_path, {UNARY_UNARY: held.unary}, {UNARY_UNARY: answer_b}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        relay.pool.workers[0].give_up(Exit(ExitCause.STALLED))
        assert await call == b"b"


async def test_a_request_whose_worker_said_so_has_begun_and_is_not_retried(tmp_path: Path) -> None:
    held = Held(initial=(*BEGUN, ("shown", "yes")), messages=0)
    async with relay_under_test(tmp_path, {UNARY_STREAM: held.stream}, {UNARY_STREAM: stream_b}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        await call.initial_metadata()
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
    assert (failure.reason, relay.pool.acquired) == ("WORKER_DIED", 1)


async def test_empty_metadata_does_not_say_that_a_request_has_begun(tmp_path: Path) -> None:
    held = Held(initial=())
    async with relay_under_test(tmp_path, {UNARY_UNARY: held.unary}, {UNARY_UNARY: answer_b}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        await relay.pool.workers[0].die()
        assert await call == b"b"


async def test_two_lost_workers_are_told_as_restarting(tmp_path: Path) -> None:
    first, second = Held(initial=None), Held(initial=None)
    async with relay_under_test(tmp_path, {UNARY_UNARY: first.unary}, {UNARY_UNARY: second.unary}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: first.calls == 1)
        await relay.pool.workers[0].die()
        await eventually(lambda: second.calls == 1)
        await relay.pool.workers[1].die()
        failure = await failure_of(call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_RESTARTING")
    assert failure.trailers["grpc-retry-pushback-ms"] == "1000"


async def test_a_retry_that_the_deadline_does_not_cover_is_told_as_restarting(tmp_path: Path) -> None:
    held = Held(initial=None)
    async with relay_under_test(tmp_path, {UNARY_UNARY: held.unary}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        relay.pool.refusal = ModelBackingOff(MODEL, 2, 7.0)
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
    assert (failure.reason, failure.trailers["grpc-retry-pushback-ms"]) == ("WORKER_RESTARTING", "7000")


@pytest.mark.parametrize("method", [STREAM_UNARY, STREAM_STREAM])
async def test_a_clients_stream_is_never_retried(tmp_path: Path, method: str) -> None:
    held = Held(initial=None, messages=0)
    async with relay_under_test(tmp_path, held.answers, {}) as relay:
        call = begin(relay, method)
        await eventually(lambda: held.calls == 1)
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
        assert (failure.reason, relay.pool.acquired) == ("WORKER_RESTARTING", 1)
