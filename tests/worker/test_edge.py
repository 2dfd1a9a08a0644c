"""Whatever a method raises, its caller gets a status."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from pomona.v1 import common_pb2

from tests.support.worker_client import refusal_of
from worker.errors import MalformedRequest
from worker.events import Usage
from worker.logs import JsonFormatter
from worker.services.edge import OWN_USAGE_KEY, SECRET_KEY, Call, Edge

SECRET = "s"


class Panic(BaseException):
    """What native code raises when it gives up is no Exception."""


async def panics(body: bytes, call: Call) -> NoReturn:
    raise Panic("/secret/path")


async def is_cancelled(body: bytes, call: Call) -> NoReturn:
    raise asyncio.CancelledError


async def sends_too_much(body: bytes, call: Call) -> None:
    # It ends the RPC at once, and what is sent then fails as it does where the caller just left; but every time.
    await call.send(common_pb2.TokenIds(ids=[1] * 10_000))


async def fails_late(body: bytes, call: Call) -> NoReturn:
    with contextlib.suppress(grpc.aio.BaseError):
        await sends_too_much(body, call)
    raise MalformedRequest("it came to light late")


async def has_used(body: bytes, call: Call) -> common_pb2.TokenIds:
    call.usage = Usage(prompt_tokens=7, completion_tokens=3, cached_prompt_tokens=2)
    logging.getLogger("worker.test").warning("noticed")
    return common_pb2.TokenIds(ids=[1])


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    edge = Edge(SECRET, "m", 1000)
    server = grpc.aio.server(options=(("grpc.max_send_message_length", 1000),))
    methods = {
        "Unary": edge.unary(panics),
        "Stream": edge.stream(panics),
        "Cancelled": edge.stream(is_cancelled),
        "SendsTooMuch": edge.stream(sends_too_much),
        "HasUsed": edge.unary(has_used),
        "FailsLate": edge.stream(fails_late),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", methods),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s", options=(("grpc.default_authority", "x"),)) as connected:
        yield connected
    await server.stop(0)


@pytest.mark.parametrize("method", ["Unary", "Stream"])
async def test_a_panic_is_an_incident_and_not_a_call_without_an_answer(channel: grpc.aio.Channel, method: str) -> None:
    make: Any = channel.unary_unary if method == "Unary" else channel.unary_stream
    call = make(f"/s/{method}")(b"", metadata=((SECRET_KEY, SECRET),), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (call if method == "Unary" else call.read())
    call.cancel()
    refusal = refusal_of(raised.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
    assert "secret" not in refusal.message


async def test_a_cancelled_call_is_no_failure_of_ours(channel: grpc.aio.Channel) -> None:
    make: Any = channel.unary_stream
    call = make("/s/Cancelled")(b"", metadata=((SECRET_KEY, SECRET),), timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    call.cancel()
    assert refusal_of(raised.value).reason == ""


@pytest.mark.parametrize("method", ["SendsTooMuch", "FailsLate"])
async def test_a_caller_that_is_gone_is_no_failure_of_ours(
    channel: grpc.aio.Channel, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    make: Any = channel.unary_stream
    call = make(f"/s/{method}")(b"", metadata=((SECRET_KEY, SECRET),), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    call.cancel()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_an_answer_consumed_is_told_beside_it(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/s/HasUsed")(b"", metadata=((SECRET_KEY, SECRET),), timeout=5)
    await call
    trailers: dict[str, Any] = dict(await call.trailing_metadata())
    usage = common_pb2.Usage.FromString(trailers[OWN_USAGE_KEY])
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens) == (7, 3, 2)


async def test_lines_of_a_call_tell_its_request_and_trace(channel: grpc.aio.Channel) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("worker.test").addHandler(handler)
    told = (("x-pomona-request-id", "r1"), ("traceparent", "00-abc-def-01"))
    try:
        for stamps in (told, ()):
            await channel.unary_unary("/s/HasUsed")(b"", metadata=((SECRET_KEY, SECRET), *stamps), timeout=5)
    finally:
        logging.getLogger("worker.test").removeHandler(handler)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["request_id"], first["trace_id"]) == ("noticed", "r1", "abc")
    assert not {"request_id", "trace_id"} & set(second)
