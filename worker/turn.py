"""This worker's turn on a device that it shares with other workers; the gateway gives turns out.

Who is alone keeps its turn and says nothing: a tick costs two looks at a lock. Once others wait, a turn is one burst
long, and before it is given back everything that was given to the device is done. A turn that is kept while nothing is
to be computed is given back by a thread that listens to the gateway, so the engine need not wake for that.

A worker whose gateway does not answer waits on: nothing computes without its turn. The requests' deadlines end what
waits, and the gateway's end ends this process.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worker.claim import Claim
from worker.histogram import Histogram
from worker.job import Durations
from worker.turn_line import HAS_COMPANY, HAS_OTHERS, IS_WANTED, Kind, Message, TurnLine

# So long after another wanted the device ticks are kept short, so that it need not wait long when it comes again.
COMPANY_S = 1.0
# How long a tick may take while nobody waits, where there are others that may come.
LONGEST_TICK_S = 1.0
MIN_BURST_S = 0.001


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What turns cost so far.

    Attributes:
        wait_us_total: waiting for them, the present wait included.
        held_us_total: computing in them, the present one included.
        waits: that are over, by length; None where there are no turns.
    """

    wait_us_total: int = 0
    held_us_total: int = 0
    waits: Durations | None = None


class Turn(Protocol):
    """What the engine asks before it computes. All but `stats` is for the engine's thread."""

    @property
    def stats(self) -> TurnStats:
        """Any thread may read it."""
        ...

    @property
    def burst_s(self) -> float | None:
        """How long the next tick should take at most; None: as long as is best."""
        ...

    def begin(self, wake: Callable[[], None]) -> None:
        """Get ready; `wake` is called on any thread when a turn that was asked for has come."""
        ...

    def take(self, claim: Callable[[], Claim]) -> bool:
        """Return whether the device may be used now; where not, the turn is asked for, for work of that claim."""
        ...

    def give(self, claim: Callable[[], Claim]) -> None:
        """End a tick: give the turn back where others wait and the burst is over, and ask for the next one."""
        ...

    def rest(self) -> None:
        """Have nothing to compute for now."""
        ...

    def close(self) -> None:
        """Take no more turns."""
        ...


class Alone:
    """The turn of a worker that shares its device with nobody."""

    stats = TurnStats()
    burst_s = None

    def begin(self, wake: Callable[[], None]) -> None:
        """See `Turn`."""

    def take(self, claim: Callable[[], Claim]) -> bool:  # noqa: ARG002  (nobody asks what for)
        """See `Turn`."""
        return True

    def give(self, claim: Callable[[], Claim]) -> None:
        """See `Turn`."""

    def rest(self) -> None:
        """See `Turn`."""

    def close(self) -> None:
        """See `Turn`."""


class SharedTurn:
    """A turn that a gateway grants over a line.

    Args:
        line: to the gateway.
        synchronize: waits, on the engine's thread, until the device has done what it was given.
        allowance_s: how much longer than usual the tick that is computed now may take; called on any thread.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        line: TurnLine,
        synchronize: Callable[[], None],
        *,
        allowance_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = line
        self._synchronize = synchronize
        self._allowance_s = allowance_s
        self._clock = clock
        self._wake: Callable[[], None] = lambda: None
        self._watcher = threading.Thread(target=self._watch, name="pomona-turn", daemon=True)
        self._lock = threading.Lock()
        # Below: only with the lock.
        self._lease: int | None = None
        self._asked_s: float | None = None  # since when a turn is waited for
        self._claim = Claim.BULK  # of what it is waited for
        self._granted_s = 0.0
        self._took_s = 0.0  # when the present tick began
        self._used_s = 0.0  # since when the device is used
        self._is_used = False  # between a tick's beginning and the rest; the engine gives the turn back then
        self._is_wanted = self._has_others = False
        self._burst_s = 0.0
        self._company_until_s = float("-inf")
        self._wait_s = self._held_s = self._lease_used_s = 0.0
        self._waits = Histogram("turn_wait")

    @property
    def stats(self) -> TurnStats:
        """What turns cost so far."""
        with self._lock:
            now = self._clock()
            held_s = self._held_s + (now - self._used_s if self._is_used else 0.0)
            wait_s = self._wait_s + (now - self._asked_s if self._asked_s is not None else 0.0)
            return TurnStats(round(wait_s * 1e6), round(held_s * 1e6), self._waits.snapshot())

    @property
    def burst_s(self) -> float | None:
        """What is left of the burst where others wait, a whole one where they did lately; None where there are none."""
        with self._lock:
            now = self._clock()
            if self._is_wanted:
                return max(MIN_BURST_S, self._burst_s - (now - self._granted_s))
            if now < self._company_until_s:
                return self._burst_s
            return LONGEST_TICK_S if self._has_others else None

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin to listen to the gateway."""
        self._wake = wake
        self._watcher.start()

    def take(self, claim: Callable[[], Claim]) -> bool:
        """Return whether the device may be used now; where not, the turn is asked for, for work of that claim."""
        with self._lock:
            now = self._clock()
            if self._lease is not None and not self._is_over(now, 0.0):
                self._use(now)
                self._took_s = now
                return True
            if self._lease is None:
                return self._ask(claim(), now)
        self._end(claim)
        return False

    def give(self, claim: Callable[[], Claim]) -> None:
        """End a tick: give the turn back where others wait and another such tick would not fit into the burst.

        The next one is asked for in the same message, or whoever waits would always be next, whatever it has had.
        """
        with self._lock:
            now = self._clock()
            if self._lease is None or not self._is_over(now, now - self._took_s):
                return
        self._end(claim)

    def rest(self) -> None:
        """Leave the turn to whoever wants it."""
        with self._lock:
            if self._lease is None or not self._is_used:
                return
        self._synchronize()
        with self._lock:
            now = self._clock()
            self._stop_using(now)
            if self._is_wanted:
                self._release(now)

    def close(self) -> None:
        """Give back what is held, and take no more turns."""
        self._synchronize()
        with self._lock:
            self._stop_using(self._clock())
            self._lease = self._asked_s = None
            self._line.send(Message(Kind.LEAVE))
        self._line.close()

    def _end(self, claim: Callable[[], Claim]) -> None:
        """Give the turn back once the device has done what it was given, and ask for the next."""
        self._synchronize()
        with self._lock:
            now = self._clock()
            if self._lease is not None:
                self._claim, self._asked_s = claim(), now
                self._release(now, 1 + self._claim)

    def _watch(self) -> None:
        while (message := self._line.receive()) is not None:
            if message.kind is Kind.GRANT:
                self._granted(message)
            else:
                self._recalled(message.lease)

    def _granted(self, message: Message) -> None:
        with self._lock:
            now = self._clock()
            if self._asked_s is None:
                return  # this worker is leaving
            waited_s, self._asked_s = now - self._asked_s, None
            self._wait_s += waited_s
            self._waits.add(waited_s)
            self._lease, self._granted_s = message.lease, now
            self._burst_s = message.micros / 1e6
            self._is_wanted = bool(message.detail & IS_WANTED)
            self._has_others = bool(message.detail & HAS_OTHERS)
            if message.detail & HAS_COMPANY:
                self._company_until_s = now + COMPANY_S
            self._use(now)  # the engine asked, and comes
        self._wake()

    def _recalled(self, lease: int) -> None:
        with self._lock:
            now = self._clock()
            if self._lease != lease:
                return  # it is on its way back
            self._is_wanted = True
            self._company_until_s = now + COMPANY_S
            if not self._is_used:
                self._release(now)
                return
        self._line.send(Message(Kind.STAY, lease, micros=round(self._allowance_s() * 1e6)))

    def _is_over(self, now: float, next_s: float) -> bool:
        """Whether others wait and a tick of that length would not fit any more."""
        return self._is_wanted and now - self._granted_s + next_s >= self._burst_s

    def _ask(self, claim: Claim, now: float) -> bool:
        """Ask for a turn, or say that what it is for is more urgent by now; returns False: it is not there yet."""
        if self._asked_s is None or claim < self._claim:
            self._asked_s = now if self._asked_s is None else self._asked_s
            self._claim = claim
            self._line.send(Message(Kind.WANT, detail=claim))
        return False

    def _use(self, now: float) -> None:
        if not self._is_used:
            self._is_used, self._used_s = True, now

    def _stop_using(self, now: float) -> None:
        if self._is_used:
            self._is_used = False
            self._held_s += now - self._used_s
            self._lease_used_s += now - self._used_s

    def _release(self, now: float, again: int = 0) -> None:
        if self._lease is None:
            return
        self._stop_using(now)
        used_s, self._lease_used_s = self._lease_used_s, 0.0
        lease, self._lease = self._lease, None
        if self._is_wanted:
            self._company_until_s = now + COMPANY_S
        self._is_wanted = False
        self._line.send(Message(Kind.RELEASE, lease, again, round(used_s * 1e6)))
