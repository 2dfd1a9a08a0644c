"""What a relay refuses, and what an operator ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.errors import CancelledByOperator, ModelBackingOff, ServerDraining
from gateway.relay import Cardinality, Relay
from tests.gateway.relay_calls import LIMIT_S, Held, begin, sent
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import (
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
async def test_a_worker_that_breaks_down_is_an_internal_error_without_its_words(tmp_path: Path, method: str) -> None:
    async def breaks(source: Any, context: Any) -> bytes:
        raise RuntimeError("/private/path")

    async def breaks_stream(source: Any, context: Any) -> AsyncIterator[bytes]:
        raise RuntimeError("/private/path")
        yield b""

    answers = {name: breaks_stream if kind.response_streams else breaks for name, kind in METHODS.items()}
    async with relay_under_test(tmp_path, answers) as relay:
        failure = await failure_of(begin(relay, method))
        assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
        assert "private" not in failure.message
        assert failure.metadata["incident"] in {line.fields.get("incident") for line in relay.ring.past(10)}


@pytest.mark.parametrize("messages", [0, 2])
async def test_a_unary_method_must_be_answered_once(tmp_path: Path, messages: int) -> None:
    # On the wire a stream of one message is a unary answer; the worker sends another number of them.
    async def wrong_stream(body: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(messages):
            yield b"x"

    async with relay_under_test(tmp_path, {UNARY_STREAM: wrong_stream}) as relay:
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((Relay({UNARY_STREAM: Cardinality(False, False)}, relay.parts),))
        server.add_insecure_port(f"unix:{tmp_path / 'second.sock'}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'second.sock'}") as channel:
            failure = await failure_of(channel.unary_unary(UNARY_STREAM)(request(), timeout=LIMIT_S))
        await server.stop(None)
    assert failure.reason == "INTERNAL_ERROR"


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_request_are_malformed(tmp_path: Path, method: str) -> None:
    async with relay_under_test(tmp_path, {}) as relay:
        body: Any = sent(b"\xff\xff") if METHODS[method].request_streams else b"\xff\xff"
        failure = await failure_of(relay.call(method)(body, timeout=LIMIT_S))
        assert relay.pool.acquired == 0
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {}) as relay:
        failure = await failure_of(relay.call(UNARY_UNARY)(request("nobody"), timeout=LIMIT_S))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert failure.metadata == {"model": "nobody", "models": MODEL}
    assert "ResourceInfo" in failure.details


@pytest.mark.parametrize("method", [STREAM_UNARY, STREAM_STREAM])
async def test_a_stream_that_ends_before_its_first_message_is_malformed(tmp_path: Path, method: str) -> None:
    async with relay_under_test(tmp_path, {}) as relay:
        failure = await failure_of(relay.call(method)(sent(), timeout=LIMIT_S))
    assert failure.reason == "MALFORMED_REQUEST"


@pytest.mark.parametrize("method", [STREAM_UNARY, STREAM_STREAM])
async def test_a_stream_whose_first_message_does_not_come_ends(tmp_path: Path, method: str) -> None:
    async with relay_under_test(tmp_path, {}, first_message_s=0.2) as relay:
        call = relay.call(method)(timeout=LIMIT_S)
        failure = await failure_of(call)
        assert not len(relay.parts.requests)
    assert (failure.code, failure.reason) == (grpc.StatusCode.ABORTED, "STREAM_IDLE")
    assert failure.metadata == {"idle_s": "0.2"}


@pytest.mark.parametrize("method", [STREAM_UNARY, STREAM_STREAM])
async def test_a_stream_whose_time_is_over_before_its_first_message_is_not_called_idle(
    tmp_path: Path, method: str
) -> None:
    async with relay_under_test(tmp_path, {}, first_message_s=5.0, max_request_s=0.2) as relay:
        failure = await failure_of(relay.call(method)(timeout=LIMIT_S))
    assert (failure.code, failure.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "")


async def test_a_first_message_that_comes_late_but_in_time_is_served(tmp_path: Path) -> None:
    async def count(source: Any, context: Any) -> bytes:
        return b"%d" % len([message async for message in source])

    async with relay_under_test(tmp_path, {STREAM_UNARY: count}) as relay:
        call = relay.call(STREAM_UNARY)(timeout=LIMIT_S)
        await call.wait_for_connection()
        assert relay.pool.acquired == 0
        await call.write(request())
        await call.done_writing()
        assert await call == b"1"


async def test_an_id_in_flight_is_not_taken_twice(tmp_path: Path) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        first = relay.call(UNARY_STREAM)(request(request_id="same"), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        failure = await failure_of(relay.call(UNARY_STREAM)(request(request_id="same"), timeout=LIMIT_S))
        assert (failure.code, failure.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
        assert [one.key.request_id for one in relay.parts.requests] == ["same"]
        first.cancel()
        await eventually(lambda: not len(relay.parts.requests))


async def test_a_full_queue_says_no_at_once(tmp_path: Path) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers, max_requests_per_model=1) as relay:
        first = begin(relay, UNARY_STREAM)
        await eventually(lambda: held.calls == 1)
        failure = await failure_of(begin(relay, UNARY_STREAM))
        assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert failure.metadata == {"scope": MODEL, "depth": "1"}
        assert {"QuotaFailure", "RetryInfo"} <= failure.details.keys()
        first.cancel()
        await eventually(lambda: not len(relay.parts.requests))
        second = begin(relay, UNARY_STREAM)
        assert await anext(aiter(second)) == b"0"
        second.cancel()


async def test_a_server_that_drains_takes_nothing_new(tmp_path: Path) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        running = begin(relay, UNARY_STREAM)
        assert await anext(aiter(running)) == b"0"
        relay.parts.admission.close()
        failure = await failure_of(begin(relay, UNARY_STREAM))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
        assert not running.done()
        running.cancel()


@pytest.mark.parametrize("method", METHODS)
async def test_an_operator_ends_a_request_that_runs(tmp_path: Path, method: str) -> None:
    held = Held()
    async with relay_under_test(tmp_path, held.answers) as relay:
        call = begin(relay, method)
        await eventually(lambda: held.calls == 1)
        await eventually(lambda: any(one.instance is not None for one in relay.parts.requests))
        (one,) = relay.parts.requests
        one.abort(CancelledByOperator(one.key.request_id))
        one.abort(ServerDraining())
        failure = await failure_of(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR")
        await eventually(lambda: held.cancelled == 1)


async def test_an_operator_ends_a_request_that_waits_for_its_model(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {}) as relay:
        waiting = asyncio.Event()

        async def acquire(model: str, timeout_s: float | None) -> Any:
            waiting.set()
            await asyncio.Event().wait()

        relay.pool.acquire = acquire  # type: ignore[method-assign]
        call = begin(relay, UNARY_STREAM)
        await waiting.wait()
        (one,) = relay.parts.requests
        one.abort(CancelledByOperator(one.key.request_id))
        failure = await failure_of(call)
        assert failure.reason == "CANCELLED_BY_OPERATOR"
        assert not len(relay.parts.requests)


async def test_a_worker_that_refuses_before_it_begins_leaves_the_client_free_to_retry(tmp_path: Path) -> None:
    calls = 0

    async def busy_once(body: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal calls
        calls += 1
        if calls == 1:
            trailers = (("grpc-status-details-bin", b"\x08\x0e"), ("grpc-retry-pushback-ms", "1"))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "once", trailers)
        yield b"ok"

    config = (
        '{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s","maxBackoff":"0.1s",'
        '"backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}'
    )
    async with relay_under_test(tmp_path, {UNARY_STREAM: busy_once}) as relay:
        options = (("grpc.service_config", config), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(relay.address, options=options) as channel:
            call = channel.unary_stream(UNARY_STREAM)(request(), timeout=LIMIT_S)
            assert [message async for message in call] == [b"ok"]
        assert calls == 2


@pytest.mark.parametrize("method", METHODS)
async def test_a_request_that_a_worker_refused_leaves_its_place(tmp_path: Path, method: str) -> None:
    async def refuse(source: Any, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no")
        return b""

    async def refuse_stream(source: Any, context: Any) -> AsyncIterator[bytes]:
        yield await refuse(source, context)

    answers = {name: refuse_stream if kind.response_streams else refuse for name, kind in METHODS.items()}
    async with relay_under_test(tmp_path, answers, max_requests_per_model=1) as relay:
        for _ in range(3):
            assert (await failure_of(begin(relay, method))).code is grpc.StatusCode.OUT_OF_RANGE
            await eventually(lambda: not len(relay.parts.requests))


async def test_a_request_for_a_model_that_cannot_serve_leaves_its_place(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {}, max_requests_per_model=1) as relay:
        relay.pool.refusal = ModelBackingOff(MODEL, 2, 7.0)
        for _ in range(3):
            assert (await failure_of(begin(relay, UNARY_UNARY))).reason == "MODEL_BACKING_OFF"
