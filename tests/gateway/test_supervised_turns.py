"""Turns of supervised workers, which are real processes: who keeps one is ended, and only then it is another's."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from gateway.lifecycle import Event, Exited
from gateway.model_status import Exit, ExitCause
from gateway.process import Command
from gateway.sockets import SocketFolder
from gateway.stop_ladder import StopLimits
from gateway.supervisor import Launch, Supervisor
from gateway.turn_table import STUCK, TurnTable
from gateway.turns import TurnLimits
from gateway.vitals import VitalLimits
from tests.support.scripted import events_in, fake_worker_command, is_alive, write_script
from tests.support.waiting import eventually

PATIENT = VitalLimits(heartbeat_s=0.05, lost_after=1000, suspect_after=1000)
QUICK_STOP = StopLimits(shutdown_s=1.0, dump_s=0.1, terminate_s=0.2, interrupt_s=0.2)
LIMIT_S = 10.0
HOLD_S = 0.3


@dataclass
class Worker:
    """A supervised worker and what it told."""

    folder: Path
    supervisor: Supervisor
    events: list[Event]

    @property
    def num_turns(self) -> int:
        return len(events_in(self.folder, "turn"))

    @property
    def pid(self) -> int:
        assert self.supervisor.instance is not None
        return self.supervisor.instance.pid

    async def exit(self) -> Exit:
        await eventually(lambda: any(isinstance(event, Exited) for event in self.events), LIMIT_S)
        (ended,) = [event for event in self.events if isinstance(event, Exited)]
        return ended.exit


@dataclass
class Stage:
    """Workers that share a device."""

    folder: Path
    sockets: SocketFolder = field(default_factory=SocketFolder)
    workers: list[Worker] = field(default_factory=list[Worker])

    def __post_init__(self) -> None:
        self.log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        self.table = TurnTable(TurnLimits(hold_s=HOLD_S), self.log)

    def start(self, name: str, turns: str, command: Command | None = None, **script: object) -> Worker:
        folder = self.folder / name
        folder.mkdir()
        settings = {"model": name, "checkpoint": str(write_script(folder, turns=turns, **script))}
        events: list[Event] = []
        launch = Launch(name, command or fake_worker_command(), settings, self.sockets, PATIENT, QUICK_STOP, self.table)
        worker = Worker(folder, Supervisor(launch, events.append, self.log), events)
        self.workers.append(worker)
        return worker

    async def with_turn(self, name: str, turns: str, *, stubborn: bool = False) -> Worker:
        worker = self.start(name, turns, stubborn=stubborn)
        await eventually(lambda: worker.num_turns > 0, LIMIT_S)
        return worker

    def happened(self, *kinds: str) -> list[tuple[str, str]]:
        return [(event.what, event.name) for event in self.table.history if event.what in kinds]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for worker in stage.workers:
        worker.supervisor.stop()
    for worker in stage.workers:
        await worker.supervisor.close(LIMIT_S)
    stage.sockets.close()
    assert stage.table.num_seats == 0


async def test_workers_take_turns(stage: Stage) -> None:
    first, second = await stage.with_turn("first", "give"), await stage.with_turn("second", "give")
    await eventually(lambda: min(first.num_turns, second.num_turns) > 3, LIMIT_S)


async def test_a_worker_that_keeps_its_turn_is_ended_as_stalled_and_the_other_waits_until_it_is_gone(
    stage: Stage,
) -> None:
    # It takes no notice of signals either, so that the whole ladder lies between the limit and its end.
    first = await stage.with_turn("first", "keep", stubborn=True)
    pid = first.pid
    second = await stage.with_turn("second", "give")
    assert not is_alive(pid)
    ended = await first.exit()
    assert (ended.cause, ended.last_words[-1]) == (ExitCause.STALLED, STUCK)
    kinds = ("granted", "stuck", "gone")
    assert stage.happened(*kinds) == [
        ("granted", "first"),
        ("stuck", "first"),
        ("gone", "first"),
        ("granted", "second"),
    ]
    assert second.num_turns == 1


async def test_a_stopped_holder_is_ended(stage: Stage) -> None:
    first = await stage.with_turn("first", "give")
    os.kill(first.pid, signal.SIGSTOP)
    await stage.with_turn("second", "give")
    assert (await first.exit()).cause is ExitCause.STALLED


async def test_the_turn_of_a_worker_that_dies_is_free_at_once(stage: Stage) -> None:
    first = await stage.with_turn("first", "keep")
    os.kill(first.pid, signal.SIGKILL)
    await stage.with_turn("second", "give")
    assert (await first.exit()).cause is ExitCause.DIED
    assert stage.happened("stuck", "gone") == [("gone", "first")]


async def test_a_worker_that_cannot_be_started_leaves_no_seat(stage: Stage) -> None:
    worker = stage.start("first", "give", Command(("/no/such/program",), {}))
    await worker.exit()
    await eventually(lambda: stage.table.num_seats == 0)


async def test_a_worker_that_is_told_to_stop_is_asked_and_not_killed_for_its_turn(stage: Stage) -> None:
    first = await stage.with_turn("first", "keep")
    first.supervisor.stop()
    assert (await first.exit()).cause is ExitCause.UNLOADED
    await stage.with_turn("second", "give")
    assert stage.happened("stuck") == []
