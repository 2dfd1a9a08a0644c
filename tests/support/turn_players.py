"""Processes that take turns at a real table, and what they noted."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gateway.process import Child, Command, spawn
from gateway.turn_table import Seat, TurnTable
from gateway.turns import Claim, Order, TurnLimits, Turns
from gateway.worker_starter import worker_environment

PLAYER = Path(__file__).parent / "turn_player.py"
REAP_S = 10.0


class GrantsTwice(Turns):
    """Rules with a defect: whoever asks has the device at once."""

    def _next(self, now_s: float) -> list[Order]:
        waiting = [member for member in self._members if member.waiting_since_s is not None]
        return [self._grant(member, is_wanted=False, now_s=now_s) for member in waiting]


@dataclass
class Player:
    """One process at the table."""

    name: str
    seat: Seat
    child: Child
    faults: list[str]

    def stop(self) -> None:
        """Have it stand still."""
        os.kill(self.child.pid, signal.SIGSTOP)


@dataclass
class Players:
    """A table, and the processes at it; each that is reported is killed at once.

    Attributes:
        folder: for what they note.
        limits: of turns.
        rules: of the table, where others than usual.
        has_turns: whether they take turns.
        device: a file that stands for a device which does one thing at a time; None: they use one that does not mind.
    """

    folder: Path
    limits: TurnLimits = field(default_factory=TurnLimits)
    rules: Turns | None = None
    has_turns: bool = True
    device: Path | None = None
    players: list[Player] = field(default_factory=list[Player])

    def __post_init__(self) -> None:
        log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        self.table = TurnTable(self.limits, log, rules=self.rules)

    def start(self, name: str, tick_s: float, claim: Claim = Claim.BULK) -> Player:
        """Start a process whose ticks are so long where nothing cuts them."""
        faults: list[str] = []
        children: list[Child] = []

        def report(problem: str) -> None:
            faults.append(problem)
            children[0].signal_group(signal.SIGKILL)

        seat = self.table.seat(name, report)
        notes = self.folder / f"{name}.uses"
        argv = [sys.executable, "-P", str(PLAYER), str(notes), str(tick_s), claim.name]
        argv += [] if self.device is None else [str(self.device)]
        command = Command(tuple(argv), worker_environment(os.environ))
        child = spawn(command, b"", _drop, seat.child_fd if self.has_turns else None)
        children.append(child)
        seat.begin()
        child.exit.add_done_callback(lambda _: seat.leave())
        player = Player(name, seat, child, faults)
        self.players.append(player)
        return player

    async def end(self) -> None:
        """Kill what is left."""
        for player in self.players:
            player.child.signal_group(signal.SIGKILL)
        for player in self.players:
            await player.child.wait(REAP_S)


@contextlib.asynccontextmanager
async def at(players: Players) -> AsyncGenerator[Players]:
    """Have a table with players for the length of the block."""
    try:
        yield players
    finally:
        await players.end()


def _drop(stream: str, line: str) -> None:
    """Keep no line."""
