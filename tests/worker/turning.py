"""Turns for tests: one that only notes what it is asked, and one over a real line whose gateway is the test."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.claim import Claim
from worker.turn import SharedTurn, TurnStats
from worker.turn_line import TurnLine

MESSAGE = struct.Struct("<BBHIQ")
WANT, RELEASE, STAY, LEAVE, GRANT, RECALL = range(1, 7)
WANTED, COMPANY, OTHERS = 1, 2, 4
LIMIT_S = 10.0


@dataclass
class NotedTurn:
    """Is there at once, and notes what it is asked; `is_free` False keeps the engine waiting."""

    is_free: bool = True
    stats: TurnStats = field(default_factory=TurnStats)
    burst_s: float | None = None
    noted: list[str] = field(default_factory=list[str])
    wake: Callable[[], None] = lambda: None

    def begin(self, wake: Callable[[], None]) -> None:
        self.noted.append("begin")
        self.wake = wake

    def take(self, claim: Callable[[], Claim]) -> bool:
        claim()
        self.noted.append("take" if self.is_free else "ask")
        return self.is_free

    def give(self, claim: Callable[[], Claim]) -> None:
        claim()
        self.noted.append("give")

    def rest(self) -> None:
        self.noted.append("rest")

    def close(self) -> None:
        self.noted.append("close")


class GatewaySide:
    """The other end of a worker's line."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(LIMIT_S)
        self.line = TurnLine(theirs.detach())

    def grant(self, lease: int, detail: int = 0, burst_s: float = 0.02) -> None:
        self._ours.sendall(MESSAGE.pack(GRANT, detail, 0, lease, round(burst_s * 1e6)))

    def recall(self, lease: int) -> None:
        self._ours.sendall(MESSAGE.pack(RECALL, 0, 0, lease, 0))

    def next(self) -> tuple[int, int, int, int]:
        """Return kind, detail, lease and microseconds of the next message; kind 0 at the end."""
        data = self._ours.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(data) < MESSAGE.size:
            return 0, 0, 0, 0
        kind, detail, _, lease, micros = MESSAGE.unpack(data)
        return kind, detail, lease, micros

    def is_silent(self) -> bool:
        """Say whether nothing has come."""
        return not select.select([self._ours], [], [], 0)[0]

    def close(self) -> None:
        self._ours.close()


def shared_turn(side: GatewaySide, **options: object) -> tuple[SharedTurn, list[float]]:
    """Return a turn over the line, and the list of its synchronizations."""
    synchronized: list[float] = []
    turn = SharedTurn(side.line, lambda: synchronized.append(os.times().elapsed), **options)  # pyright: ignore[reportArgumentType]
    return turn, synchronized
