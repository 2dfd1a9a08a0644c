"""How RPCs end that cannot be relayed to their end: refusals, lost workers, lost clients, deadlines."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.errors import CancelledByOperator, ModelBackingOff, ServerDraining
from gateway.exchange import BEGUN_GAP_S
from gateway.model_status import Exit, ExitCause
from gateway.relay import Cardinality, Relay
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
    RelayUnderTest,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually

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


async def test_a_request_that_began_is_not_retried_even_without_a_key_in_its_metadata(tmp_path: Path) -> None:
    held = Held(initial=())
    async with relay_under_test(tmp_path, {UNARY_UNARY: held.unary}, {UNARY_UNARY: answer_b}) as relay:
        call = relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        await eventually(lambda: held.calls == 1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()  # the metadata is empty: only the time between it and the end tells
        await eventually(lambda: loop.time() - began_s > 5 * BEGUN_GAP_S)
        await relay.pool.workers[0].die()
        failure = await failure_of(call)
    assert failure.reason == "WORKER_DIED"


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
