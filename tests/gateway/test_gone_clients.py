"""Clients that are gone when something is sent to them: no bug of ours, and nobody is left to be told.

A message over the server's own limit ends an RPC at once, and what is sent then fails as it does for a client that just
left; but it does so every time.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.errors import ServerDraining
from gateway.exchange import Exchange
from gateway.relay import Cardinality, Relay
from gateway.services.registration import ServicersEdge
from tests.gateway.statuses import failure_of
from tests.support.scripted_worker import (
    STREAM_STREAM,
    UNARY_STREAM,
    RelayUnderTest,
    relay_under_test,
    request,
)
from tests.support.waiting import eventually

LIMIT_S = 10.0
LARGE = b"x" * 100_000
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_send_message_length", 1000))
BARE = "/test.Kinds/Bare"


async def large(source: Any, context: Any) -> AsyncIterator[bytes]:
    yield LARGE


@contextlib.asynccontextmanager
async def narrow(folder: Path, handlers: grpc.GenericRpcHandler) -> AsyncGenerator[grpc.aio.Channel]:
    """Serve where no more than 1,000 bytes can be sent at once."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((handlers,))
    address = f"unix:{folder / 'narrow.sock'}"
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address, options=(("grpc.default_authority", "localhost"),)) as channel:
        yield channel
    await server.stop(None)


class Bare(grpc.GenericRpcHandler):
    """One method, handled by a function over its context."""

    def __init__(self, handle: Callable[[Any], Awaitable[None]]) -> None:
        self.handle = handle

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def stream(source: Any, context: Any) -> None:
            await self.handle(context)

        return grpc.stream_stream_rpc_method_handler(stream)


def problems(relay: RelayUnderTest, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as a failure, by us and by the library."""
    ours = [line.event for line in relay.ring.past(100) if line.level == "error"]
    return ours + [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("method", [UNARY_STREAM, STREAM_STREAM])
async def test_a_message_to_a_client_that_is_gone_is_no_failure(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_under_test(tmp_path, {method: large}) as relay:
        handlers = Relay({method: Cardinality(method == STREAM_STREAM, True)}, relay.parts)
        async with narrow(tmp_path, handlers) as channel:
            failure = await failure_of(channel.stream_stream(method)(iter([request()]), timeout=LIMIT_S))
            await eventually(lambda: not len(relay.parts.requests) and relay.pool.holds == 0, LIMIT_S)
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert relay.ring.past(1)[0].fields["status"] == "CANCELLED"
        assert problems(relay, caplog) == []


async def fails_late(context: Any) -> None:
    """Send what ends the RPC, and then fail in a way that its client would be told."""
    with contextlib.suppress(grpc.aio.BaseError):
        await context.write(LARGE)
    raise ServerDraining


@pytest.mark.parametrize("edge", ["relay", "services"])
async def test_a_status_for_a_client_that_is_gone_is_no_failure(
    tmp_path: Path, edge: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_under_test(tmp_path, {}) as relay:

        async def handle(context: Any) -> None:
            guard: Any = (
                Exchange(BARE, True, context, relay.parts)
                if edge == "relay"
                else ServicersEdge(context, relay.parts.log)
            )
            async with guard:
                await fails_late(context)

        async with narrow(tmp_path, Bare(handle)) as channel:
            failure = await failure_of(channel.stream_stream(BARE)(timeout=LIMIT_S))
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert problems(relay, caplog) == []


async def test_an_own_service_whose_client_is_gone_has_not_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_under_test(tmp_path, {}) as relay:

        async def handle(context: Any) -> None:
            async with ServicersEdge(context, relay.parts.log):
                await context.write(LARGE)

        async with narrow(tmp_path, Bare(handle)) as channel:
            await failure_of(channel.stream_stream(BARE)(timeout=LIMIT_S))
        assert problems(relay, caplog) == []
