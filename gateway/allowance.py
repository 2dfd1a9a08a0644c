"""How much callers have had: calls a minute, as a bucket that fills evenly, and calls that are open."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.caller_errors import RateLimited
from gateway.principal import Principal

MINUTE_S = 60.0
STREAM_RETRY_S = 1.0  # nobody knows when a stream ends
MOST_KEPT = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


class Allowance:
    """Counts by the callers' names. Lives on one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing used; `now` is a clock in seconds."""
        self._now = now
        self._buckets: dict[str, _Bucket] = {}
        self._open: Counter[str] = Counter()

    def take_call(self, principal: Principal) -> None:
        """Count a call; a caller that was quiet for a minute may make a minute's calls at once.

        Raises:
            RateLimited: the caller has had its calls of this minute; it says when the next one is due.
        """
        most = principal.limits.rate_per_minute
        if most is None:
            return
        now_s = self._now()
        bucket = self._buckets.pop(principal.name, None) or _Bucket(most, now_s)
        filled = bucket.tokens + (now_s - bucket.filled_s) * most / MINUTE_S
        bucket.tokens, bucket.filled_s = min(float(most), filled), now_s
        self._keep(principal.name, bucket)
        if bucket.tokens < 1:
            raise RateLimited(principal.name, "rate", most, (1 - bucket.tokens) * MINUTE_S / most)
        bucket.tokens -= 1

    def open_stream(self, principal: Principal) -> None:
        """Count a call that stays open; `close_stream` must follow.

        Raises:
            RateLimited: the caller has as many open as it may.
        """
        most = principal.limits.streams
        if most is not None and self._open[principal.name] >= most:
            raise RateLimited(principal.name, "streams", most, STREAM_RETRY_S)
        self._open[principal.name] += 1

    def close_stream(self, principal: Principal) -> None:
        """Note that a call ended that was open."""
        self._open[principal.name] -= 1
        if not self._open[principal.name]:
            del self._open[principal.name]

    def _keep(self, name: str, bucket: _Bucket) -> None:
        """Keep the newest buckets; the oldest is of a caller that has been quiet for longest."""
        self._buckets[name] = bucket
        if len(self._buckets) > MOST_KEPT:
            del self._buckets[next(iter(self._buckets))]
