"""Whatever a method raises, its caller gets a status."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest

from tests.support.worker_client import refusal_of
from worker.services.edge import SECRET_KEY, Call, Edge

SECRET = "s"


class Panic(BaseException):
    """What native code raises when it gives up is no Exception."""


async def panics(body: bytes, call: Call) -> NoReturn:
    raise Panic("/secret/path")


async def is_cancelled(body: bytes, call: Call) -> NoReturn:
    raise asyncio.CancelledError


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    edge = Edge(SECRET, "m", 1000)
    server = grpc.aio.server()
    methods = {"Unary": edge.unary(panics), "Stream": edge.stream(panics), "Cancelled": edge.stream(is_cancelled)}
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
