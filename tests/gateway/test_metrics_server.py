"""The page of metrics over HTTP."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import structlog

from gateway import metrics_server
from gateway.address import ListenError
from gateway.metrics_server import MAX_HEAD_BYTES, Exposition, MetricsServer
from gateway.settings import SettingsError, load_settings
from tests.gateway.scraping import asked, get
from tests.support.waiting import eventually

BODY = b"# some numbers\nx 1.0\n"


@contextlib.asynccontextmanager
async def page(failure: Exception | None = None, body: bytes = BODY, send_bytes: int = 0) -> AsyncGenerator[str]:
    async def scrape() -> Exposition:
        if failure is not None:
            raise failure
        return Exposition("text/plain; version=0.0.4", body)

    log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    server = MetricsServer("127.0.0.1", 0, scrape, log)
    try:
        address = await server.start()
        if send_bytes and server._server is not None:
            server._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        yield address
    finally:
        await server.close()


async def test_the_page_is_served_with_its_kind_and_length() -> None:
    async with page() as address:
        answer = await get(address, "/metrics?name[]=x")
    assert (answer.status, answer.body.encode()) == (200, BODY)
    assert answer.headers["content-length"] == str(len(BODY))
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"
    assert answer.headers["connection"] == "close"


async def test_of_a_head_request_only_the_head_comes() -> None:
    async with page() as address:
        answer = await get(address, method="HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, "", str(len(BODY)))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_scrape_is_refused(request_: bytes, status: int) -> None:
    async with page() as address:
        answer = await asked(address, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_whoever_asks_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_LIMIT_S", 0.05)
    async with page() as address:
        assert (await asked(address, b"GET ")).startswith(b"HTTP/1.1 408 ")


async def test_whoever_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it kept where what is left for it is so little that the server does not wait to write it."""
    monkeypatch.setattr(metrics_server, "REQUEST_LIMIT_S", 0.05)
    monkeypatch.setattr(metrics_server, "ANSWER_LIMIT_S", 0.05)
    body = b"x" * 60_000
    async with page(body=body, send_bytes=4096) as address:
        host, _, port = address.rpartition(":")
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(5.0)
            reader.connect((host, int(port)))
            reader.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            await asyncio.to_thread(reader.recv, 1)
            await eventually(lambda: not asyncio.all_tasks() - {asyncio.current_task()})  # and nobody cares any more
            taken = await asyncio.to_thread(taken_of, reader)
    assert taken < len(body)


def taken_of(reader: socket.socket) -> int:
    """Return how many bytes still come."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        while data := reader.recv(65_536):
            taken += len(data)
    return taken


async def test_a_scrape_that_fails_says_nothing_of_why() -> None:
    async with page(RuntimeError("a secret")) as address:
        answer = await get(address)
    assert answer.status == 500
    assert "secret" not in answer.body


async def test_an_address_that_is_taken_is_named() -> None:
    async with page() as address:
        host, _, port = address.rpartition(":")
        log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        other = MetricsServer(host, int(port), lambda: None, log)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ListenError, match=f"metrics: {address}"):
            await other.start()


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ({"listen": "127.0.0.1:9464"}, ("127.0.0.1", 9464)),
        ({"listen": "[::1]:0"}, ("::1", 0)),
        ({"listen": "localhost:1"}, ("localhost", 1)),
        ({"listen": "0.0.0.0:9464", "allow_remote": True}, ("0.0.0.0", 9464)),
    ],
)
def test_an_address_is_a_host_and_a_port(told: dict[str, Any], where: tuple[str, int]) -> None:
    settings = load_settings(None, {"metrics": told}).metrics
    assert (settings.host, settings.port) == where


@pytest.mark.parametrize(
    ("listen", "named"),
    [
        ("0.0.0.0:9464", "allow_remote"),
        ("example.org:1", "allow_remote"),
        ("9464", "HOST:PORT"),
        ("h:70000", "HOST:PORT"),
    ],
)
def test_an_address_that_others_reach_or_that_is_none_is_refused(listen: str, named: str) -> None:
    with pytest.raises(SettingsError, match=f"metrics: listen: .*{named}"):
        load_settings(None, {"metrics": {"listen": listen}})
