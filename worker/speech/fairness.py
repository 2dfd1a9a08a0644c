"""Whose window is heard next, so that a short clip does not wait behind an hour, nor the hour for ever. Plain Python.

What is more urgent goes first: an utterance that is over before one in its middle, and who listens before who can wait.
Then a higher priority goes before a lower. Among equals the turns alternate: one goes to who has had the fewest
windows, which is who came with a short clip, the next to who waits longest.

Nobody waits for ever: when those who listen took turn upon turn, one goes to who can wait, before interims soon, before
everything when ends of utterances alone take all there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeVar

# Turns in a row of those who listen, behind which one goes to who can wait: before interims, and before everything.
PATIENCE = 8
LAST_PATIENCE = 16


class Urgency(IntEnum):
    """How soon a window must be heard."""

    PATIENT = 0
    """Nobody listens: of a file."""
    SPEAKING = 1
    """An interim: left out where there is no time for it."""
    PAUSING = 2
    """The last of an utterance, if nobody goes on."""
    OVER = 3
    """Of an utterance that is over."""

    @property
    def is_final(self) -> bool:
        """Whether somebody waits for what is told of it to be final."""
        return self >= Urgency.PAUSING


@dataclass(slots=True)
class Share:
    """What a request has had.

    Attributes:
        num_windows: that were heard or are being heard.
        last_turn: number of the turn in which it got its last window; of its arrival, before it got any.
    """

    num_windows: int = 0
    last_turn: int = 0


class Waiter(Protocol):
    """A request that may want windows."""

    @property
    def urgency(self) -> Urgency:
        """Of its next window."""
        ...

    @property
    def priority(self) -> int:
        """Higher goes first."""
        ...

    @property
    def share(self) -> Share:
        """What it has had."""
        ...


W = TypeVar("W", bound=Waiter)


class Turns:
    """Gives out windows, one a turn."""

    def __init__(self) -> None:
        self._number = 0
        self._num_listened = 0  # turns in a row of those who listen, while somebody else may have waited
        self._was_patient_asked = False

    @property
    def is_patient_due(self) -> bool:
        """Whether those who can wait have waited long enough to go before interims."""
        return self._num_listened >= PATIENCE

    def join(self, waiter: Waiter) -> None:
        """Take somebody in, behind those who wait."""
        waiter.share.last_turn = self._number
        if waiter.urgency is Urgency.PATIENT:
            self._num_listened = min(self._num_listened, PATIENCE)  # it did not wait yet

    def order(self, waiters: Sequence[W]) -> Iterator[W]:
        """Yield who may take this turn, in the order in which they are to be asked."""
        goes_to_fewest = self._number % 2 == 0
        self._was_patient_asked = any(waiter.urgency is Urgency.PATIENT for waiter in waiters)

        def rank(waiter: W) -> tuple[float, int, int, int]:
            share = waiter.share
            first, second = share.num_windows, share.last_turn
            if not goes_to_fewest:
                first, second = second, first
            return -self._standing(waiter.urgency), -waiter.priority, first, second

        return iter(sorted(waiters, key=rank))

    def take(self, waiter: Waiter, urgency: Urgency) -> None:
        """Note who took the turn, with a window of which urgency; the next begins."""
        # Those who can wait were asked before it, and had nothing.
        has_declined = self._was_patient_asked and self._standing(Urgency.PATIENT) > urgency
        is_listener = urgency is not Urgency.PATIENT
        self._num_listened = self._num_listened + 1 if is_listener and not has_declined else 0
        self._number += 1
        waiter.share.num_windows += 1
        waiter.share.last_turn = self._number

    def _standing(self, urgency: Urgency) -> float:
        if urgency is not Urgency.PATIENT or not self.is_patient_due:
            return urgency
        return (Urgency.SPEAKING if self._num_listened < LAST_PATIENCE else Urgency.OVER) + 0.5
