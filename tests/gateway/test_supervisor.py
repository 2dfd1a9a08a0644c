import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.errors import CheckpointRejected
from gateway.lifecycle import Event, Exited, Leaving, Progressed, Ready, Recovered, Suspected
from gateway.model_status import Exit, ExitCause, LoadProgress
from gateway.process import Command
from gateway.sockets import SocketFolder
from gateway.stop_ladder import StopLimits
from gateway.supervisor import Launch, Supervisor
from gateway.vitals import VitalLimits
from tests.support.scarcity import descriptors_left, no_thread, open_descriptors
from tests.support.scripted import (
    STREAM_GENERATE,
    events_in,
    fake_worker_command,
    is_alive,
    write_script,
)
from tests.support.waiting import eventually

PATIENT = VitalLimits(heartbeat_s=0.05, lost_after=1000, suspect_after=1000)
QUICK_STOP = StopLimits(shutdown_s=1.0, dump_s=0.3, terminate_s=0.3, interrupt_s=0.3)
HOLD = {STREAM_GENERATE: [{"send": "00"}, {"hang": True}]}
LIMIT_S = 10.0


@dataclass
class Watched:
    """A supervisor and what it told."""

    supervisor: Supervisor
    events: list[Event]
    lines: Sequence[Mapping[str, Any]]

    def seen(self, kind: type[Event]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    async def wait_for(self, kind: type[Event]) -> None:
        await eventually(lambda: self.seen(kind), LIMIT_S)

    async def exit(self) -> Exited:
        await self.wait_for(Exited)
        last = self.events[-1]
        assert isinstance(last, Exited)
        return last

    @property
    def pid(self) -> int:
        assert self.supervisor.instance is not None
        return self.supervisor.instance.pid

    async def ended(self) -> Exit:
        """Return what holders of the worker are told."""
        assert self.supervisor.instance is not None
        return await self.supervisor.instance.exit


class LateClock:
    """A clock that stands still until it is told to run, so that the start of a process takes no time."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def run(self) -> None:
        self._began_s = time.monotonic()


@dataclass
class Nursery:
    """Starts supervised workers and sees that none is left."""

    folder: Path
    sockets: SocketFolder
    started: list[Supervisor] = field(default_factory=list[Supervisor])

    def start(
        self,
        script: dict[str, Any],
        vital_limits: VitalLimits = PATIENT,
        stop_limits: StopLimits = QUICK_STOP,
        command: Command | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> Watched:
        path = write_script(self.folder, **script)
        settings = {"model": "m", "checkpoint": str(path)}
        launch = Launch("m", command or fake_worker_command(), settings, self.sockets, vital_limits, stop_limits)
        events: list[Event] = []
        capture = structlog.testing.LogCapture()
        log = structlog.wrap_logger(None, processors=[capture])
        supervisor = Supervisor(launch, events.append, log, now)
        self.started.append(supervisor)
        return Watched(supervisor, events, capture.entries)


@pytest.fixture
async def nursery(tmp_path: Path) -> AsyncIterator[Nursery]:
    nursery = Nursery(tmp_path, SocketFolder())
    yield nursery
    for supervisor in nursery.started:
        supervisor.stop()
        await supervisor.close(LIMIT_S)
    nursery.sockets.close()


@asynccontextmanager
async def call_in_flight(worker: Watched) -> AsyncGenerator[Any]:
    assert worker.supervisor.instance is not None
    call = worker.supervisor.instance.channel.unary_stream(STREAM_GENERATE)(b"", timeout=LIMIT_S)
    try:
        await call.read()
        yield call
    finally:
        call.cancel()


async def test_a_worker_becomes_ready_after_its_progress(nursery: Nursery) -> None:
    worker = nursery.start({"reports": 3, "pause_s": 0.3})
    await worker.wait_for(Ready)
    progress = [event.progress for event in worker.events if isinstance(event, Progressed)]
    assert progress[-1] == LoadProgress("weights", 3, 3)
    assert [type(event) for event in worker.events if not isinstance(event, Progressed)] == [Ready]


async def test_a_worker_is_told_who_it_is_and_where_to_listen(nursery: Nursery) -> None:
    worker = nursery.start({})
    await worker.wait_for(Ready)
    (started,) = events_in(nursery.folder, "started")
    told = started["settings"]
    instance = worker.supervisor.instance
    assert instance is not None
    assert (told["instance_id"], told["model"], told["secret"]) == (instance.instance_id, "m", instance.secret)
    assert told["socket"] == str(nursery.sockets.socket_path(instance.instance_id))
    assert "PYTHONPATH" not in started["environment"]


async def test_each_worker_has_its_own_id_and_secret(nursery: Nursery) -> None:
    first, second = nursery.start({}), nursery.start({})
    await first.wait_for(Ready)
    await second.wait_for(Ready)
    a, b = first.supervisor.instance, second.supervisor.instance
    assert a is not None
    assert b is not None
    assert len({a.instance_id, b.instance_id, a.secret, b.secret}) == 4


async def test_a_worker_that_answers_as_another_is_ended(nursery: Nursery) -> None:
    worker = nursery.start({"own_id": "somebody"})
    ended = await worker.exit()
    assert ended.exit.cause is ExitCause.DIED
    assert "somebody" in ended.exit.last_words[-1]
    assert not worker.seen(Ready)
    assert not is_alive(worker.pid)


async def test_a_crash_on_load_ends_the_wait_with_code_and_last_words(nursery: Nursery) -> None:
    worker = nursery.start({"load": "crash", "last_words": "the floor is gone"})
    ended = await worker.exit()
    assert ended == Exited(Exit(ExitCause.DIED, None, 1, ("the floor is gone",)))


async def test_a_failed_load_tells_the_workers_reason(nursery: Nursery) -> None:
    worker = nursery.start({"load": "fail", "failure": {"message": "no key.", "metadata": {"file": "config.json"}}})
    ended = await worker.exit()
    assert ended.exit.code == 3
    assert isinstance(ended.failure, CheckpointRejected)
    assert (ended.failure.problem, dict(ended.failure.facts)) == ("no key.", {"file": "config.json"})


async def test_the_reason_is_found_in_the_last_line_when_no_report_came(nursery: Nursery) -> None:
    said = '{"reason": "CHECKPOINT_REJECTED", "message": "bad."}'
    code = f"import sys; print({said!r}, file=sys.stderr); sys.exit(3)"
    command = Command((*fake_worker_command().argv[:1], "-c", code), {})
    ended = await nursery.start({}, command=command).exit()
    assert isinstance(ended.failure, CheckpointRejected)
    assert ended.failure.problem == "bad."


async def test_a_program_that_cannot_be_started_is_an_exit(nursery: Nursery) -> None:
    ended = await nursery.start({}, command=Command(("/no/such/program",), {})).exit()
    words = "the worker could not be started: No such file or directory"
    assert ended.exit == Exit(ExitCause.DIED, last_words=(words,))


async def test_a_start_without_descriptors_is_an_exit_in_words(nursery: Nursery) -> None:
    before = open_descriptors()
    with descriptors_left(3):
        ended = await nursery.start({}).exit()
    assert ended.exit == Exit(ExitCause.DIED, last_words=("the worker could not be started: Too many open files",))
    assert open_descriptors() == before


async def test_a_start_without_a_thread_is_an_exit_in_words(nursery: Nursery) -> None:
    with no_thread():
        ended = await nursery.start({}).exit()
    assert ended.exit.last_words == ("the worker could not be started: no thread to watch it",)


class UnreadableSettings(dict[str, Any]):
    def keys(self) -> Any:
        raise MemoryError


async def test_a_supervision_that_breaks_off_is_an_exit_too(nursery: Nursery) -> None:
    command = fake_worker_command()
    ended = await nursery.start({}, command=Command(command.argv, UnreadableSettings())).exit()
    assert ended.exit == Exit(ExitCause.DIED, last_words=("its supervision broke off",))


@pytest.mark.parametrize("load", ["hang", "stuck"])
async def test_a_load_that_stands_still_is_given_up(nursery: Nursery, load: str) -> None:
    limits = VitalLimits(heartbeat_s=0.05, load_stall_s=1.0, lost_after=1000)
    worker = nursery.start({"load": load}, limits)
    ended = await worker.exit()
    assert ended.exit.cause is ExitCause.STALLED
    assert ended.exit.last_words[-1] == "the load stands still"
    assert not is_alive(worker.pid)


@pytest.mark.parametrize("moves", ["reports", "errands"])
async def test_a_load_that_moves_outlives_the_stall_limit(nursery: Nursery, moves: str) -> None:
    limits = VitalLimits(heartbeat_s=0.05, load_stall_s=3.0, lost_after=1000)
    clock = LateClock()
    worker = nursery.start({moves: 35, "pause_s": 0.1}, limits, now=clock)
    await worker.wait_for(Progressed)
    clock.run()
    await worker.wait_for(Ready)


async def test_a_killed_worker_is_told_to_its_holders_at_once(nursery: Nursery) -> None:
    worker = nursery.start({"methods": HOLD})
    await worker.wait_for(Ready)
    async with call_in_flight(worker):
        os.kill(worker.pid, signal.SIGKILL)
        ended = await worker.ended()
    assert (ended.cause, ended.signal) == (ExitCause.DIED, signal.SIGKILL)
    assert (await worker.exit()).exit.signal == signal.SIGKILL


async def test_a_stopped_worker_is_suspect_and_recovers_when_it_goes_on(nursery: Nursery) -> None:
    worker = nursery.start({}, VitalLimits(heartbeat_s=0.1, suspect_after=3, lost_after=1000))
    await worker.wait_for(Ready)
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.wait_for(Suspected)
    os.kill(worker.pid, signal.SIGCONT)
    await worker.wait_for(Recovered)


async def test_a_worker_that_stays_stopped_is_given_up_and_ended(nursery: Nursery) -> None:
    worker = nursery.start({}, VitalLimits(heartbeat_s=0.05, suspect_after=3, lost_after=10))
    await worker.wait_for(Ready)
    os.kill(worker.pid, signal.SIGSTOP)
    assert (await worker.ended()).cause is ExitCause.STALLED
    ended = await worker.exit()
    assert (ended.exit.cause, ended.exit.last_words[-1]) == (ExitCause.STALLED, "no heartbeat")
    assert not is_alive(worker.pid)


async def test_a_worker_that_computes_nothing_is_asked_for_its_stacks_and_ended(nursery: Nursery) -> None:
    limits = VitalLimits(heartbeat_s=0.05, compute_stall_s=0.3, suspect_after=1000, lost_after=1000)
    worker = nursery.start({"frozen": True, "methods": HOLD}, limits)
    await worker.wait_for(Ready)
    async with call_in_flight(worker):
        assert (await worker.ended()).cause is ExitCause.STALLED
    ended = await worker.exit()
    assert ended.exit.last_words[-1] == "the compute thread stands still"
    assert any("most recent call first" in str(line.get("line")) for line in worker.lines)


async def test_a_worker_that_computes_may_take_its_time(nursery: Nursery) -> None:
    limits = VitalLimits(heartbeat_s=0.05, compute_stall_s=5.0, suspect_after=1000, lost_after=1000)
    worker = nursery.start({"methods": HOLD}, limits)
    await worker.wait_for(Ready)
    async with call_in_flight(worker):
        before = len(worker.events)
        await eventually(lambda: worker.supervisor.stats.running_requests == 1)
        assert len(worker.events) == before


async def test_a_long_step_may_take_its_time(nursery: Nursery) -> None:
    limits = VitalLimits(heartbeat_s=0.05, compute_stall_s=0.3, suspect_after=1000, lost_after=1000)
    worker = nursery.start({"frozen": True, "step_tokens": 1000, "methods": HOLD}, limits)
    await worker.wait_for(Ready)
    async with call_in_flight(worker):
        assert worker.supervisor.instance is not None
        _, running = await asyncio.wait([worker.supervisor.instance.exit], timeout=1.0)
        assert running


async def test_a_worker_starts_though_somebody_removed_the_folder_of_sockets(nursery: Nursery) -> None:
    nursery.sockets.path.rmdir()
    worker = nursery.start({})
    await worker.wait_for(Ready)
    assert nursery.sockets.path.exists()


async def test_a_folder_of_sockets_that_cannot_be_made_is_an_exit_in_words(nursery: Nursery, tmp_path: Path) -> None:
    parent = tmp_path / "sockets"
    parent.mkdir()
    nursery.sockets.close()
    nursery.sockets = SocketFolder(parent)
    nursery.sockets.path.rmdir()
    parent.rmdir()
    ended = await nursery.start({}).exit()
    problem = "no folder for its socket: No such file or directory"
    assert ended.exit.last_words == (f"the worker could not be started: {problem}",)


async def test_a_worker_that_takes_its_leave_unasked_says_so_once(nursery: Nursery) -> None:
    worker = nursery.start({"lingers": True})
    await worker.wait_for(Ready)
    os.kill(worker.pid, signal.SIGTERM)
    await worker.wait_for(Leaving)
    worker.supervisor.stop()
    await worker.exit()
    assert [type(event) for event in worker.events].count(Leaving) == 1


async def test_a_hurried_end_does_not_wait_for_the_rungs(nursery: Nursery) -> None:
    slow = StopLimits(shutdown_s=60.0, terminate_s=60.0, interrupt_s=60.0)
    worker = nursery.start({"stubborn": True}, stop_limits=slow)
    await worker.wait_for(Ready)
    worker.supervisor.stop()
    await eventually(lambda: bool(events_in(nursery.folder, "shutdown")))
    worker.supervisor.hurry()
    ended = await worker.exit()
    assert (ended.exit.cause, ended.exit.signal) == (ExitCause.UNLOADED, signal.SIGKILL)


async def test_a_worker_ends_when_asked_and_its_memory_is_counted(nursery: Nursery) -> None:
    worker = nursery.start({})
    await worker.wait_for(Ready)
    worker.supervisor.stop()
    ended = await worker.exit()
    assert (ended.exit.cause, ended.exit.code) == (ExitCause.UNLOADED, 0)
    assert worker.supervisor.freed_bytes > 1 << 20
    assert events_in(nursery.folder, "shutdown")


async def test_a_worker_that_ignores_everything_is_killed(nursery: Nursery) -> None:
    worker = nursery.start({"stubborn": True, "grandchild": True})
    await worker.wait_for(Ready)
    worker.supervisor.stop()
    ended = await worker.exit()
    assert (ended.exit.cause, ended.exit.signal) == (ExitCause.UNLOADED, signal.SIGKILL)
    (grandchild,) = events_in(nursery.folder, "grandchild")
    await eventually(lambda: not is_alive(grandchild["pid"]))


async def test_a_stop_during_the_start_leaves_no_process(nursery: Nursery) -> None:
    worker = nursery.start({})
    await eventually(lambda: worker.supervisor.instance is not None)
    worker.supervisor.stop()
    assert (await worker.exit()).exit.cause is ExitCause.UNLOADED
    assert not is_alive(worker.pid)


async def test_the_socket_of_a_worker_goes_with_it(nursery: Nursery) -> None:
    worker = nursery.start({})
    await worker.wait_for(Ready)
    os.kill(worker.pid, signal.SIGKILL)
    await worker.exit()
    await eventually(lambda: not list(nursery.sockets.path.iterdir()))


async def test_a_supervisor_that_is_closed_early_kills_its_worker(nursery: Nursery) -> None:
    worker = nursery.start({"stubborn": True})
    await worker.wait_for(Ready)
    await worker.supervisor.close(0.0)
    await eventually(lambda: not is_alive(worker.pid))
    assert worker.seen(Exited)
