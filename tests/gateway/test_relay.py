"""What passes the relay unharmed, for each of the four kinds of RPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import generation_pb2

from gateway.relay import Cardinality, methods_of
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import (
    ALIAS,
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

LIMIT_S = 10.0
TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


async def unary_echo(body: bytes, context: Any) -> bytes:
    return body


async def three_messages(body: bytes, context: Any) -> AsyncIterator[bytes]:
    for number in range(3):
        yield b"%d" % number


async def count(source: Any, context: Any) -> bytes:
    return b"%d" % len([message async for message in source])


async def stream_echo(source: Any, context: Any) -> AsyncIterator[bytes]:
    async for message in source:
        yield message


ANSWERS = {UNARY_UNARY: unary_echo, UNARY_STREAM: three_messages, STREAM_UNARY: count, STREAM_STREAM: stream_echo}


async def sent(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def metadata_seen_by_worker(folder: Path, body: bytes, metadata: Any = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def note(body: bytes, context: Any) -> bytes:
        found.update(context.invocation_metadata(), body=body, remaining_s=context.time_remaining())
        return b""

    async with relay_under_test(folder, {UNARY_UNARY: note}, max_request_s=77.0) as relay:
        await relay.call(UNARY_UNARY)(body, metadata=metadata)
    return found


async def test_unary_request_and_answer_pass_unchanged(tmp_path: Path) -> None:
    body = request(request_id="r1", prompt="x" * 100_000)
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        assert await relay.call(UNARY_UNARY)(body, timeout=LIMIT_S) == body


async def test_answers_stream_in_their_order(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        assert [message async for message in call] == [b"0", b"1", b"2"]


async def test_half_close_of_the_client_reaches_the_worker(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        messages = sent(request(), b"second", b"third")
        assert await relay.call(STREAM_UNARY)(messages, timeout=LIMIT_S) == b"3"


async def test_messages_pass_both_ways_while_both_sides_are_open(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        call = relay.call(STREAM_STREAM)(timeout=LIMIT_S)
        first = request(request_id="r")
        await call.write(first)
        assert await call.read() == first
        await call.write(b"anything")
        assert await call.read() == b"anything"
        await call.done_writing()
        assert await call.read() is EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_worker_that_ends_first_ends_a_bidirectional_stream(tmp_path: Path) -> None:
    async def one_answer(source: Any, context: Any) -> AsyncIterator[bytes]:
        yield await anext(aiter(source))
        context.set_trailing_metadata((("why", "enough"),))

    async with relay_under_test(tmp_path, {STREAM_STREAM: one_answer}) as relay:
        call = relay.call(STREAM_STREAM)(timeout=LIMIT_S)
        await call.write(request())
        assert await call.read() is not EOF
        assert await call.read() is EOF
        assert await call.code() is grpc.StatusCode.OK
        assert dict(await call.trailing_metadata()) == {"why": "enough"}
        await eventually(lambda: not len(relay.parts.requests))


@pytest.mark.parametrize("round_number", range(10))
async def test_a_worker_that_ends_first_keeps_its_status_while_the_client_still_writes(
    tmp_path: Path, round_number: int
) -> None:
    async def refuse_third(source: Any, context: Any) -> AsyncIterator[bytes]:
        messages = aiter(source)
        yield await anext(messages)
        await anext(messages)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "enough")

    async def without_end() -> AsyncIterator[bytes]:
        yield request()
        while True:
            yield b"x" * 10_000

    async with relay_under_test(tmp_path, {STREAM_STREAM: refuse_third}) as relay:
        await failure_of(relay.call(STREAM_STREAM)(without_end(), timeout=LIMIT_S))
        await eventually(lambda: len(relay.ring.past(10)) == 1)
        # The client's own library may put its failed write in the place of the status, the gateway must not.
        assert relay.ring.past(1)[0].fields["status"] == "OUT_OF_RANGE"


async def test_a_worker_that_ends_first_answers_a_client_that_still_streams(tmp_path: Path) -> None:
    async def early(source: Any, context: Any) -> bytes:
        await anext(aiter(source))
        return b"early"

    async with relay_under_test(tmp_path, {STREAM_UNARY: early}) as relay:
        call = relay.call(STREAM_UNARY)(timeout=LIMIT_S)
        await call.write(request())
        assert await call == b"early"


async def test_a_stream_without_a_message_is_an_ok_stream(tmp_path: Path) -> None:
    async def nothing(body: bytes, context: Any) -> AsyncIterator[bytes]:
        for message in ():
            yield message

    async with relay_under_test(tmp_path, {UNARY_STREAM: nothing}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        assert [message async for message in call] == []
        assert await call.code() is grpc.StatusCode.OK


async def test_trailers_and_initial_metadata_pass(tmp_path: Path) -> None:
    async def answer(body: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata((*BEGUN, ("shown", "yes")))
        context.set_trailing_metadata((("pomona-usage-bin", b"\x00\xff"),))
        yield b""

    async with relay_under_test(tmp_path, {UNARY_STREAM: answer}) as relay:
        call = relay.call(UNARY_STREAM)(request(), timeout=LIMIT_S)
        assert [message async for message in call] == [b""]
        assert dict(await call.initial_metadata()) == {"shown": "yes"}
        assert dict(await call.trailing_metadata()) == {"pomona-usage-bin": b"\x00\xff"}


async def test_initial_metadata_comes_before_the_first_message(tmp_path: Path) -> None:
    may_answer = asyncio.Event()

    async def answer(body: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("shown", "yes"),))
        await may_answer.wait()
        return b"late"

    async with relay_under_test(tmp_path, {UNARY_UNARY: answer}) as relay:
        # Seen as a stream, for a unary call shows its initial metadata only at its end.
        call = relay.channel.unary_stream(UNARY_UNARY)(request(), timeout=LIMIT_S)
        assert dict(await call.initial_metadata()) == {"shown": "yes"}
        assert not call.done()
        may_answer.set()
        assert [message async for message in call] == [b"late"]


@pytest.mark.parametrize("method", METHODS)
async def test_a_status_with_rich_details_passes_untouched(tmp_path: Path, method: str) -> None:
    details = b"\x08\x03\x12\x04mine"

    async def fail(source: Any, context: Any) -> bytes:
        trailers = (("grpc-status-details-bin", details), ("grpc-retry-pushback-ms", "-1"), ("other", "x"))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "mine", trailers)
        return b""

    async def fail_stream(source: Any, context: Any) -> AsyncIterator[bytes]:
        yield await fail(source, context)

    answers = {name: fail_stream if kind.response_streams else fail for name, kind in METHODS.items()}
    async with relay_under_test(tmp_path, answers) as relay:
        body: Any = sent(request()) if METHODS[method].request_streams else request()
        failure = await failure_of(relay.call(method)(body, timeout=LIMIT_S))
    assert (failure.code, failure.message) == (grpc.StatusCode.INVALID_ARGUMENT, "mine")
    assert failure.trailers["grpc-status-details-bin"] == details
    assert (failure.trailers["grpc-retry-pushback-ms"], failure.trailers["other"]) == ("-1", "x")


async def test_the_worker_is_told_what_the_gateway_read(tmp_path: Path) -> None:
    told = await metadata_seen_by_worker(tmp_path, request(request_id="mine", priority=-3))
    assert told["x-pomona-model"] == MODEL
    assert told["x-pomona-request-id"] == "mine"
    assert told["x-pomona-priority"] == "-3"
    assert told["x-pomona-principal"] == ""
    assert told["x-pomona-secret"] == "secret"


async def test_of_a_clients_metadata_only_known_keys_pass(tmp_path: Path) -> None:
    metadata = (
        ("x-pomona-secret", "stolen"),
        ("x-pomona-principal", "root"),
        ("authorization", "Bearer mine"),
        ("traceparent", TRACEPARENT),
        ("tracestate", "a=b"),
        ("x-request-id", "theirs"),
    )
    told = await metadata_seen_by_worker(tmp_path, request(), metadata)
    assert (told["x-pomona-secret"], told["x-pomona-principal"]) == ("secret", "")
    assert (told["traceparent"], told["tracestate"], told["x-request-id"]) == (TRACEPARENT, "a=b", "theirs")
    assert "authorization" not in told


async def test_an_alias_becomes_the_canonical_name_in_the_body(tmp_path: Path) -> None:
    told = await metadata_seen_by_worker(tmp_path, request(ALIAS, prompt="p"))
    parsed = generation_pb2.GenerateRequest.FromString(told["body"])
    assert (parsed.model, parsed.spec.prompt, told["x-pomona-model"]) == (MODEL, "p", MODEL)


async def test_a_request_without_an_id_gets_one_in_its_body(tmp_path: Path) -> None:
    told = await metadata_seen_by_worker(tmp_path, request())
    parsed = generation_pb2.GenerateRequest.FromString(told["body"])
    assert len(parsed.request_id) == 16
    assert parsed.request_id == told["x-pomona-request-id"]


async def test_a_request_without_a_deadline_gets_the_servers_maximum(tmp_path: Path) -> None:
    told = await metadata_seen_by_worker(tmp_path, request())
    assert 60 < told["remaining_s"] < 78


async def test_a_method_that_is_not_relayed_is_unimplemented(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        failure = await failure_of(relay.channel.unary_unary("/test.Kinds/Other")(b""))
    assert failure.code is grpc.StatusCode.UNIMPLEMENTED


async def test_every_hold_ends_with_its_request(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        for _ in range(5):
            await relay.call(UNARY_UNARY)(request(), timeout=LIMIT_S)
        assert relay.pool.acquired == 5
        await eventually(lambda: relay.pool.holds == 0 and len(relay.parts.requests) == 0)


async def test_each_request_leaves_one_line_without_its_content(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, ANSWERS) as relay:
        await relay.call(UNARY_UNARY)(request(request_id="r7", prompt="secret words"), timeout=LIMIT_S)
        await eventually(lambda: len(relay.ring.past(10)) == 1)
        line = relay.ring.past(10)[0]
    assert (line.model, line.fields["request_id"], line.fields["status"]) == (MODEL, "r7", "OK")
    assert "secret words" not in str(line)


def test_cardinalities_come_from_the_descriptors() -> None:
    methods = methods_of(generation_pb2.DESCRIPTOR.services_by_name["GenerationService"])
    assert methods == {
        "/pomona.v1.GenerationService/Generate": Cardinality(False, False),
        "/pomona.v1.GenerationService/StreamGenerate": Cardinality(False, True),
        "/pomona.v1.GenerationService/CountTokens": Cardinality(False, False),
    }
