"""Ends requests whose clients stand still: a write to a client lasts no longer than its limit and the deadline.

A timer for each request looks at it now and then, so that a message costs no timer of its own.
"""

from __future__ import annotations

import asyncio
import time

from gateway.errors import DeadlineExceeded
from gateway.request_errors import SlowReader
from gateway.requests import Request

LOOKS_PER_LIMIT = 8
SHORTEST_PAUSE_S = 0.01


class WriteWatch:
    """Looks at the writes of one request until it is closed."""

    __slots__ = ("_deadline_s", "_limit_s", "_loop", "_request", "_seen", "_since_s", "_timer")

    def __init__(self, request: Request, deadline_s: float, limit_s: float) -> None:
        """Begin to look.

        Args:
            request: is ended when a write lasts too long.
            deadline_s: when it must have ended, on the monotonic clock.
            limit_s: how long a single write may last.
        """
        self._request = request
        self._deadline_s = deadline_s
        self._limit_s = limit_s
        self._seen = -1
        self._since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._pause_s(time.monotonic()), self._look)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now_s, request = time.monotonic(), self._request
        if request.is_writing:
            self._judge(now_s)
        else:
            self._seen = -1
        self._timer = self._loop.call_later(self._pause_s(now_s), self._look)

    def _judge(self, now_s: float) -> None:
        """End the request where the write that it is in has lasted too long, or should not have begun."""
        request = self._request
        if request.error is not None:
            request.abort(request.error)
        elif now_s >= self._deadline_s:
            request.abort(DeadlineExceeded())
        elif self._seen != request.events_sent:
            self._seen, self._since_s = request.events_sent, now_s
        elif now_s - self._since_s >= self._limit_s:
            request.abort(SlowReader(now_s - self._since_s))

    def _pause_s(self, now_s: float) -> float:
        """Return how long to wait until the next look, which is not much later than the deadline."""
        pause_s = self._limit_s / LOOKS_PER_LIMIT
        if now_s < self._deadline_s:
            pause_s = min(pause_s, self._deadline_s - now_s)
        return max(pause_s, SHORTEST_PAUSE_S)
