"""Log lines: written by `log_output.py`, and kept for StreamLogs.

A line holds what happened and to which request; never a prompt, an answer or audio, and at info and above no path.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor, WrappedLogger

from gateway.log_levels import LogLevels
from gateway.log_output import Style

MAX_WAITING_LINES = 1000  # of one follower; older ones are dropped and counted
MAX_FIELDS = 32


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        time_s: when it was written, seconds since 1970.
        level: debug, info, warning or error.
        event: what happened, in words.
        model: whose it is; empty for lines of the gateway.
        instance_id: which worker wrote it; empty for lines of the gateway.
        fields: everything else.
    """

    time_s: float
    level: str
    event: str
    model: str = ""
    instance_id: str = ""
    fields: MutableMapping[str, str] = field(default_factory=dict[str, str])


class LogRing:
    """The last lines, and whoever waits for the next ones. Lives on one event loop."""

    def __init__(self, kept_lines: int) -> None:
        """Keep at most `kept_lines`."""
        self._lines: deque[LogLine] = deque(maxlen=kept_lines)
        self._followers: set[LogFollower] = set()

    def add(self, line: LogLine) -> None:
        """Keep `line` and hand it to the followers."""
        self._lines.append(line)
        for follower in self._followers:
            follower.add(line)

    def past(self, count: int, model: str = "") -> list[LogLine]:
        """Return the last `count` lines, oldest first; of one model where it is named."""
        lines = [line for line in self._lines if not model or line.model == model]
        return lines[max(0, len(lines) - count) :]

    def follow(self, model: str = "") -> LogFollower:
        """Return what receives every line from now on until it is closed."""
        follower = LogFollower(model, self._followers.discard)
        self._followers.add(follower)
        return follower


class LogFollower:
    """The lines that one reader has not taken yet: bounded, the oldest give way."""

    def __init__(self, model: str, forget: Any) -> None:
        """Take lines of `model`, or all; `forget` is called with the follower when it closes."""
        self._model = model
        self._forget = forget
        self._lines: deque[LogLine] = deque(maxlen=MAX_WAITING_LINES)
        self._dropped = 0
        self._has_lines = asyncio.Event()

    def add(self, line: LogLine) -> None:
        """Take a line if it is one that the reader wants."""
        if self._model and line.model != self._model:
            return
        if len(self._lines) == MAX_WAITING_LINES:
            self._dropped += 1
        self._lines.append(line)
        self._has_lines.set()

    async def lines(self) -> AsyncIterator[tuple[LogLine, int]]:
        """Yield each line with the number of lines dropped before it; ends only when the reader goes away."""
        while True:
            await self._has_lines.wait()
            while self._lines:
                dropped, self._dropped = self._dropped, 0
                yield self._lines.popleft(), dropped
            self._has_lines.clear()

    def close(self) -> None:
        """Receive no more lines."""
        self._forget(self)


class LineStream(Protocol):
    """What lines are written to, with their ends; must neither wait nor raise."""

    def isatty(self) -> bool:
        """Say whether a person looks at it directly."""
        ...

    def write(self, text: str, /) -> object:
        """Take a line."""
        ...


def make_log(ring: LogRing, level: str | LogLevels, style: Style, stream: LineStream) -> FilteringBoundLogger:
    """Return a logger that writes to `stream` and to `ring` what is at least `level`, which may change."""
    levels = LogLevels(level) if isinstance(level, str) else level
    # Of the ways to write a trace this one shows no values of variables, which may be prompts and secrets.
    console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    render: tuple[Processor, ...] = (
        (structlog.processors.format_exc_info, structlog.processors.JSONRenderer()) if style == "json" else (console,)
    )
    return cast(
        "FilteringBoundLogger",
        structlog.wrap_logger(
            _Writer(stream),
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            processors=[
                structlog.processors.add_log_level,
                levels,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                _Keeper(ring),
                *render,
            ],
        ),
    )


class _Writer:
    """The end of structlog's chain: lines of every level are written alike."""

    def __init__(self, stream: LineStream) -> None:
        self._write = stream.write
        self.debug = self.info = self.warning = self.error = self._line

    def _line(self, text: str) -> None:
        self._write(text + "\n")


class _Keeper:
    """A structlog processor that copies each line into the ring."""

    def __init__(self, ring: LogRing) -> None:
        """Copy into `ring`."""
        self._ring = ring

    def __call__(
        self, _logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Copy `event` without its detail, a trace shortened to its exception's name, and pass it on as it is."""
        extra = {
            key: _text(value)
            for key, value in list(event.items())[:MAX_FIELDS]
            if key not in {"event", "level", "timestamp", "model", "instance_id", "exc_info", "detail"}
        }
        if event.get("exc_info"):
            extra["exception"] = _exception_name(event["exc_info"])
        self._ring.add(
            LogLine(
                time_s=time.time(),
                level=str(event.get("level", "info")),
                event=_text(event.get("event", "")),
                model=str(event.get("model", "")),
                instance_id=str(event.get("instance_id", "")),
                fields=extra,
            )
        )
        return event


def _text(value: object) -> str:
    return str(value)[:2000]


def _exception_name(exc_info: object) -> str:
    error = sys.exception() if exc_info is True else exc_info
    if isinstance(error, tuple):
        error = cast("tuple[object, ...]", error)[1]
    return type(error).__name__
