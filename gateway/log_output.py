"""Where log lines go: a descriptor that may be slow, full or gone, which must never hold up whoever logs.

Lines wait in a bounded room and a thread of its own writes them. What has no place in that room, or cannot be written,
is dropped and counted, and the count is written as soon as there is a place again. The thread writes past Python's own
buffers: one that is stuck in them could not be left behind at the end of the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Literal

from structlog.typing import FilteringBoundLogger

from gateway.status import CLIENT_GONE

MAX_WAITING_BYTES = 1024 * 1024
RETRY_S = 1.0  # how often a descriptor that takes nothing at the moment is asked again

Style = Literal["json", "console"]


def standard_error() -> int | None:
    """Return the descriptor of standard error; None where the process was started without one."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


class LogOutput:
    """Takes lines from any thread and writes them from its own."""

    def __init__(self, descriptor: int | None, style: Style, *, write: Callable[[int, bytes], int] = os.write) -> None:
        """Write to `descriptor`, nowhere where it is None; `style` is how the count of dropped lines looks."""
        self._descriptor = descriptor
        self._style: Style = style
        self._write_some = write
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._is_closed = descriptor is None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def isatty(self) -> bool:
        """Say whether a person looks at it directly."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, text: str) -> None:
        """Take a line with its end, or drop it where too much waits already; never waits and never raises."""
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._is_closed:
                return
            if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._add_notice()
            self._add(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log-output", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, limit_s: float) -> None:
        """Take no more lines and wait until those that wait are written, but no longer than the limit."""
        with self._changed:
            if not self._is_closed:
                self._add_notice()
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(limit_s)

    def _add_notice(self) -> None:
        if self._dropped:
            self._add(self._notice(self._dropped))
            self._dropped = 0

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._waiting_bytes += len(line)

    def _notice(self, count: int) -> bytes:
        if self._style == "console":
            return b"%d log lines were dropped: standard error did not take them\n" % count
        event = {"event": "log lines dropped", "level": "warning", "lines": count}
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return json.dumps({**event, "timestamp": timestamp}).encode() + b"\n"

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines) or self._is_closed)
                if not self._lines:
                    return
                line = self._lines.popleft()
            is_written = self._write_line(line)
            with self._changed:
                self._waiting_bytes -= len(line)
                self._dropped += not is_written

    def _write_line(self, line: bytes) -> bool:
        """Write a line to its end; say whether that went well."""
        descriptor, rest = self._descriptor, memoryview(line)
        if descriptor is None:
            return False
        while rest:
            try:
                rest = rest[self._write_some(descriptor, bytes(rest)) :]
            except BlockingIOError:
                select.select([], [descriptor], [], RETRY_S)
            except (OSError, ValueError):
                return False
        return True


class _LibraryLines(logging.Handler):
    """Passes on what libraries log by Python's own means, which writes to standard error in the caller's thread."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log `record`; its text, which may hold paths, is written but not kept."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        if record.exc_info is not None and isinstance(record.exc_info[1], CLIENT_GONE):
            level = "debug"
        with contextlib.suppress(Exception):
            text = record.getMessage()
            getattr(self._log, level)("library line", library=record.name, detail=text, exc_info=record.exc_info)


@contextlib.contextmanager
def library_lines(log: FilteringBoundLogger) -> Generator[None]:
    """Write what libraries log to `log` for the length of the block."""
    handler = _LibraryLines(log)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
