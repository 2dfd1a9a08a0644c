"""The page that Prometheus reads: HTTP/1.1 with GET /metrics and nothing else, on the event loop.

Whoever connects has a few seconds to ask, a request is a few kilobytes at most, and few may be connected at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from gateway.address import ListenError

PATH = "/metrics"
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 16
REQUEST_LIMIT_S = 5.0
ANSWER_LIMIT_S = 10.0
TEXT = "text/plain; charset=utf-8"


class Exposition(NamedTuple):
    """The text of a scrape and its kind, as HTTP names it."""

    content_type: str
    body: bytes


Scrape = Callable[[], Awaitable[Exposition]]
"""Returns the metrics."""


class MetricsServer:
    """Listens for scrapes. Lives on one event loop."""

    def __init__(self, host: str, port: int, scrape: Scrape, log: FilteringBoundLogger) -> None:
        """Serve what `scrape` returns at `host` and `port`, 0 for a free one; nothing listens yet."""
        self._host = host
        self._port = port
        self._scrape = scrape
        self._log = log
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen and return the address with the port that was taken.

        Raises:
            ListenError: the address is taken or not allowed.
        """
        name = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise ListenError(f"metrics: {name}:{self._port}: {(error.strerror or 'not allowed').lower()}") from error
        return f"{name}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Listen no more and end what is connected."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S + ANSWER_LIMIT_S):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, EOFError):
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request and answer it."""
        if len(self._open) > MAX_CONNECTIONS:
            writer.write(_refusal(HTTPStatus.SERVICE_UNAVAILABLE))
        else:
            writer.write(await self._answer(reader))
        await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
        writer.close()
        await writer.wait_closed()  # what is written is not yet taken: who takes nothing is not kept for ever

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return _refusal(HTTPStatus.REQUEST_TIMEOUT)
        except asyncio.LimitOverrunError:
            return _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refusal(HTTPStatus.BAD_REQUEST)
        method, path = words[0], words[1].partition("?")[0]
        if path != PATH:
            return _refusal(HTTPStatus.NOT_FOUND)
        if method not in {"GET", "HEAD"}:
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        return await self._metrics(is_head=method == "HEAD")

    async def _metrics(self, *, is_head: bool) -> bytes:
        try:
            text = await self._scrape()
        except Exception as error:  # noqa: BLE001 - the edge of this server: whoever scrapes gets an answer
            self._log.error("scrape failed", what=type(error).__name__, exc_info=error)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        answer = _answer(HTTPStatus.OK, text.content_type, text.body)
        return answer[: len(answer) - len(text.body)] if is_head else answer


def _refusal(status: HTTPStatus) -> bytes:
    return _answer(status, TEXT, f"{status.value} {status.phrase}; metrics are at GET {PATH}\n".encode())


def _answer(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode("latin-1") + body
