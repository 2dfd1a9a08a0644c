"""Whose window is heard next, so that a short clip does not wait behind an hour, nor the hour for ever. Plain Python.

Somebody who listens goes before somebody who can wait, then a higher priority before a lower. Among equals the turns
alternate: one goes to who has had the fewest windows, which is who came with a short clip, the next to who waits
longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


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
    def is_urgent(self) -> bool:
        """Whether somebody listens."""
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

    def join(self, waiter: Waiter) -> None:
        """Take somebody in, behind those who wait."""
        waiter.share.last_turn = self._number

    def order(self, waiters: Sequence[W]) -> Iterator[W]:
        """Yield who may take this turn, in the order in which they are to be asked."""
        goes_to_fewest = self._number % 2 == 0

        def rank(waiter: W) -> tuple[bool, int, int, int]:
            share = waiter.share
            first, second = share.num_windows, share.last_turn
            if not goes_to_fewest:
                first, second = second, first
            return not waiter.is_urgent, -waiter.priority, first, second

        return iter(sorted(waiters, key=rank))

    def take(self, waiter: Waiter) -> None:
        """Note who took the turn; the next begins."""
        self._number += 1
        waiter.share.num_windows += 1
        waiter.share.last_turn = self._number
