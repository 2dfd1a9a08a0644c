"""Which requests took their workers with them, so that one of them cannot spend the restarts of a model.

A request is known by a hash of its content. When a worker dies, blame falls on what ran on it: on requests that another
died with before, rather than on others, and among those on what was being read, rather than on what was being answered;
among the others on what had begun, rather than on what had not. A request that is answered to its end is cleared.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.envelope import content_of
from gateway.request_errors import RequestQuarantined

DIGEST_BYTES = 16
LONG_BYTES = 64 * 1024  # What is longer is hashed beside the event loop.


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """When a request is refused, and for how long.

    Attributes:
        deaths: after so many workers died with it; 0: never.
        lasting_s: after the last of them, in seconds.
        max_requests: that are remembered; the oldest go first.
    """

    deaths: int = 2
    lasting_s: float = 600.0
    max_requests: int = 10_000


class Stage(enum.IntEnum):
    """How far a worker is with a request."""

    CALLED = 0
    BEGUN = 1
    ANSWERED = 2


async def fingerprint_of(method: str, model: str, body: bytes, group: str = "") -> bytes:
    """Return what two requests have in common that differ in nothing but their id, their priority or an alias.

    Those of two groups have nothing in common: a caller cannot have the request of another one refused, by asking the
    same beside something that ends the worker, nor learn by it what another one asked.

    Args:
        method: full name.
        model: canonical name.
        body: serialized; its envelope was read before.
        group: of the caller.
    """
    words = (method, model, group)
    if len(body) <= LONG_BYTES:
        return _hash(words, body)
    return await asyncio.to_thread(_hash, words, body)


class Quarantine:
    """Remembers the requests that workers died with, by their fingerprints.

    Args:
        limits: when one is refused.
        now: monotonic time in seconds.
    """

    def __init__(self, limits: QuarantineLimits, now: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._now = now
        self._deaths: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # and when the last was
        self._running: dict[str, set[Run]] = {}

    def __len__(self) -> int:
        return len(self._deaths)

    @property
    def running(self) -> int:
        """How many requests workers have."""
        return sum(map(len, self._running.values()))

    def check(self, fingerprint: bytes) -> None:
        """Refuse a request that is not to be tried again.

        Raises:
            RequestQuarantined: too many workers died with it.
        """
        if 0 < self.limits.deaths <= self.deaths(fingerprint):
            raise RequestQuarantined(self.deaths(fingerprint))

    def deaths(self, fingerprint: bytes) -> int:
        """Return how many workers died with a request of late."""
        number, last_s = self._deaths.get(fingerprint, (0, 0.0))
        return number if self._now() - last_s < self.limits.lasting_s else 0

    def run(self, instance_id: str, fingerprint: bytes) -> Run:
        """Note that a worker has a request now."""
        run = Run(self, instance_id, fingerprint)
        self._running.setdefault(instance_id, set()).add(run)
        return run

    def leave(self, run: Run) -> None:
        """Note that a worker has a request no more."""
        runs = self._running.get(run.instance_id)
        if runs is not None:
            runs.discard(run)
            if not runs:
                del self._running[run.instance_id]

    def clear(self, fingerprint: bytes) -> None:
        """Forget that workers died with a request."""
        self._deaths.pop(fingerprint, None)

    def died(self, instance_id: str) -> None:
        """Blame the death of a worker on what ran on it; a second call does nothing."""
        runs = self._running.pop(instance_id, set())
        if not runs:
            return
        ranks = {run: self._rank(run) for run in runs}
        worst = max(ranks.values())
        for fingerprint in {run.fingerprint for run, rank in ranks.items() if rank == worst}:
            self._blame(fingerprint)

    def _rank(self, run: Run) -> tuple[bool, int]:
        is_suspect = self.deaths(run.fingerprint) > 0
        if is_suspect and run.stage is Stage.BEGUN:
            return True, 2
        return is_suspect, int(run.stage is not Stage.CALLED)

    def _blame(self, fingerprint: bytes) -> None:
        self._deaths[fingerprint] = (self.deaths(fingerprint) + 1, self._now())
        self._deaths.move_to_end(fingerprint)
        while len(self._deaths) > self.limits.max_requests:
            self._deaths.popitem(last=False)


class Run:
    """One request on one worker."""

    __slots__ = ("_quarantine", "fingerprint", "instance_id", "stage")

    def __init__(self, quarantine: Quarantine, instance_id: str, fingerprint: bytes) -> None:
        """Begin as called; `leave` ends it."""
        self._quarantine = quarantine
        self.instance_id = instance_id
        self.fingerprint = fingerprint
        self.stage = Stage.CALLED

    def died(self) -> None:
        """Note that the worker is gone."""
        self._quarantine.died(self.instance_id)

    def completed(self) -> None:
        """Note that it was answered to its end."""
        self._quarantine.clear(self.fingerprint)
        self.leave()

    def leave(self) -> None:
        """End it; a second call does nothing."""
        self._quarantine.leave(self)


def _hash(words: Iterable[str], body: bytes) -> bytes:
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for word in words:
        hashed.update(word.encode() + b"\0")
    for part in content_of(body):
        hashed.update(part)
    return hashed.digest()
