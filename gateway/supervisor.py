"""The life of one worker process: spawn, handshake, readiness, heartbeat, and the ladder that ends it.

A supervisor owns its process from the spawn to the reaping and tells what happens as events of `gateway.lifecycle`;
`Exited` is always the last of them and always comes.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pomona.v1 import server_pb2, worker_pb2
from structlog.typing import FilteringBoundLogger

from gateway.errors import GatewayError, ModelLoadFailed, load_error
from gateway.footprint import footprint_bytes
from gateway.lifecycle import Event, Exited, Leaving, Progressed, Ready, Recovered, Suspected
from gateway.model_status import Exit, ExitCause, Instance, LoadProgress, ModelState
from gateway.process import Child, ChildExit, Command, ProcessError, SpawnError, spawn
from gateway.sockets import SocketFolder
from gateway.stop_ladder import Ending, StopLimits, ask_to_end, dump_stacks, force_to_end
from gateway.turn_table import Seat, TurnTable
from gateway.vitals import Beat, Verdict, VitalLimits, Vitals
from gateway.worker_lines import json_object, line_logger
from gateway.worker_link import LinkError, WorkerLink, WrongWorkerError

LOAD_FAILED_CODE = 3
FOOTPRINT_LIMIT_S = 2.0
CLOSE_GRACE_S = 1.0
END_KNOWN_S = 1.0
LEAVING_STATES = frozenset({ModelState.DRAINING, ModelState.UNLOADING})


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start, and as which model.

    Attributes:
        model: canonical name.
        command: the worker's program and environment.
        settings: the worker's settings but for the three that differ by instance.
        sockets: where it is to listen.
        vital_limits: how long it may be silent.
        stop_limits: how long it may take to end.
        turns: where it takes turns on its device; None: nowhere.
    """

    model: str
    command: Command
    settings: Mapping[str, Any]
    sockets: SocketFolder
    vital_limits: VitalLimits = field(default_factory=VitalLimits)
    stop_limits: StopLimits = field(default_factory=StopLimits)
    turns: TurnTable | None = None


class Supervisor:
    """Starts one worker and sees to it until it is gone.

    Args:
        launch: what to start.
        post: takes each event, on the event loop.
        log: bound to the model.
        now: monotonic time in seconds.
    """

    def __init__(
        self,
        launch: Launch,
        post: Callable[[Event], None],
        log: FilteringBoundLogger,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance_id = secrets.token_hex(6)
        self.start_time_s = time.time()
        self.instance: Instance | None = None
        self.stats = server_pb2.ModelStats()
        self.freed_bytes = 0
        self._launch = launch
        self._post = post
        self._now = now
        self._log = log.bind(instance_id=self.instance_id)
        self._vitals = Vitals(launch.vital_limits, now())
        self._progress = LoadProgress()
        self._failure: GatewayError | None = None
        self._process_exit: asyncio.Future[ChildExit] | None = None
        self._is_linked = self._is_ready = self._is_suspect = self._is_leaving = False
        loop = asyncio.get_running_loop()
        self._stop_asked: asyncio.Future[None] = loop.create_future()
        self._fault: asyncio.Future[tuple[ExitCause, str]] = loop.create_future()
        self._exit: asyncio.Future[Exit] = loop.create_future()
        self._hurry = asyncio.Event()
        self._task = loop.create_task(self._run(), name=f"supervise {launch.model} {self.instance_id}")
        self._task.add_done_callback(self._note_break)

    @property
    def left_process(self) -> asyncio.Future[ChildExit] | None:
        """The end, still to come, of a process that could not be killed; None where none is left."""
        return self._process_exit if self._process_exit is not None and not self._process_exit.done() else None

    @property
    def longest_stop_s(self) -> float:
        """How long the whole stop ladder can take, in seconds."""
        return longest_stop_s(self._launch.stop_limits)

    def stop(self) -> None:
        """Begin to end the worker; `Exited` tells when it is gone."""
        if not self._stop_asked.done():
            self._stop_asked.set_result(None)

    def hurry(self) -> None:
        """Have the worker's end take no longer than it must, whenever that begins or has begun."""
        self._hurry.set()

    async def close(self, timeout_s: float) -> None:
        """Wait until nothing of the worker is left; what is left past the limit is killed."""
        _, waiting = await asyncio.wait([self._task], timeout=timeout_s)
        if waiting:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=self._launch.stop_limits.reap_s)

    async def _run(self) -> None:
        """Start the worker and see to it; whatever happens here, `Exited` is told."""
        ended = Exit(ExitCause.DIED, last_words=("its supervision broke off",))
        async with contextlib.AsyncExitStack() as left_over:
            try:
                ended = await self._live(left_over)
            except ProcessError as error:
                self._log.error("worker not started", problem=str(error))
                ended = Exit(ExitCause.DIED, last_words=(f"the worker could not be started: {error}",))
            finally:
                self._give_up(ended)
                self._post(Exited(ended, self._failure))

    async def _live(self, left_over: contextlib.AsyncExitStack) -> Exit:
        """Take the worker from its start to its end; what may wait until that is told goes to `left_over`.

        Raises:
            ProcessError: there is no worker.
        """
        sockets, secret = self._launch.sockets, secrets.token_hex(16)
        try:
            sockets.restore()
        except OSError as error:
            raise SpawnError(f"no folder for its socket: {os.strerror(error.errno or 0)}") from error
        socket = sockets.socket_path(self.instance_id)
        child = self._spawn(socket, secret, self._seat(left_over))
        try:
            left_over.callback(_remove, socket)
            link = WorkerLink(socket, secret)
            left_over.push_async_callback(link.close, CLOSE_GRACE_S)
            self.instance = Instance(self.instance_id, child.pid, link.channel, secret, self._exit)
            self._process_exit = child.exit
            child.exit.add_done_callback(self._resolve_exit)
            return await self._supervise(child, link)
        finally:
            child.signal_group(signal.SIGKILL)

    def _note_break(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("supervision broke off", exc_info=error)

    def _seat(self, left_over: contextlib.AsyncExitStack) -> Seat | None:
        """Take a place where workers take turns; it is free again when the worker is gone, before that is told."""
        if self._launch.turns is None:
            return None
        try:
            seat = self._launch.turns.seat(self._launch.model, partial(self._report_fault, cause=ExitCause.STALLED))
        except OSError as error:
            raise SpawnError(f"no turn line: {os.strerror(error.errno or 0)}") from error
        left_over.callback(seat.leave)
        return seat

    def _spawn(self, socket: Path, secret: str, seat: Seat | None) -> Child:
        own = {"instance_id": self.instance_id, "socket": str(socket), "secret": secret}
        told = json.dumps({**self._launch.settings, **own}).encode()
        child = spawn(self._launch.command, told, line_logger(self._log), None if seat is None else seat.child_fd)
        if seat is not None:
            seat.begin()
            child.exit.add_done_callback(lambda _: seat.leave())
        self._log.info("worker started", pid=child.pid)
        return child

    async def _supervise(self, child: Child, link: WorkerLink) -> Exit:
        watcher = asyncio.create_task(self._watch(child, link))
        try:
            cause, problem = await self._until_over(child)
            is_gone = await self._end(child, link, cause)
        finally:
            watcher.cancel()
        if not is_gone:
            problem = "the worker could not be killed"
            self._failure = ModelLoadFailed(self._launch.model, problem)
        ended = child.exit.result() if is_gone else ChildExit(None, None)
        if ended.code == LOAD_FAILED_CODE and self._failure is None:
            self._failure = _failure_in(self._launch.model, ended.last_lines)
        words = (*ended.last_lines, problem) if problem else ended.last_lines
        return Exit(cause, ended.signal, ended.code, words)

    async def _until_over(self, child: Child) -> tuple[ExitCause, str]:
        """Watch until the worker has ended or must end; say why, and what was wrong with it if it still runs."""
        pause_s = self._launch.vital_limits.heartbeat_s / 2
        ends = child.exit, self._stop_asked, self._fault
        while True:
            done, _ = await asyncio.wait(ends, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if self._stop_asked in done:
                return ExitCause.UNLOADED, ""
            if self._fault in done and child.exit not in done:
                return self._fault.result()
            if child.exit in done:
                return ExitCause.DIED, ""
            verdict = self._vitals.judge(self._now())
            if verdict not in {Verdict.FINE, Verdict.SUSPECT}:
                return ExitCause.STALLED, verdict.value
            self._suspect(verdict is Verdict.SUSPECT)

    async def _end(self, child: Child, link: WorkerLink, cause: ExitCause) -> bool:
        """Bring the worker to its end; say whether it is gone."""
        limits, ending = self._launch.stop_limits, Ending(child, self._hurry)
        held_bytes = 0
        if cause is ExitCause.STALLED:
            self._log.warning("worker stalled", pid=child.pid)
            self._give_up(Exit(cause))
            await dump_stacks(ending, limits)
        elif cause is ExitCause.UNLOADED:
            held_bytes = await _footprint(child.pid)
            if self._is_linked:
                await ask_to_end(ending, link, limits)
        elif self._failure is not None:
            await ending.wait(limits.own_end_s)
        is_gone = child.exit.done() or await force_to_end(ending, limits)
        self.freed_bytes = held_bytes if is_gone else 0
        return is_gone

    async def _watch(self, child: Child, link: WorkerLink) -> None:
        limits = self._launch.vital_limits
        try:
            await link.handshake(self.instance_id, self._launch.model, limits.handshake_s)
        except WrongWorkerError as error:
            self._report_fault(str(error))
            return
        except LinkError as error:
            await child.wait(END_KNOWN_S)  # A line that breaks off is most often a worker that ends.
            self._report_fault(str(error))
            return
        self._is_linked = True
        while True:
            try:
                async with contextlib.aclosing(link.watch(limits.heartbeat_s)) as reports:
                    async for report in reports:
                        self._take(report)
            except LinkError as error:
                self._log.debug("heartbeat broke off", problem=str(error))
            await asyncio.sleep(limits.heartbeat_s)

    def _take(self, report: worker_pb2.WatchWorkerResponse) -> None:
        load = report.load_progress
        progress = LoadProgress(load.phase, load.bytes_done, load.bytes_total)
        is_active = report.state == ModelState.ACTIVE
        self._is_ready, was_ready = self._is_ready or is_active, self._is_ready
        self.stats = report.stats
        ticks, running = report.compute_ticks_total, report.stats.running_requests
        beat = Beat(self._is_ready, (load.phase, load.bytes_done, ticks), ticks, running, report.step_tokens)
        self._vitals.beat(beat, self._now())
        if report.state == ModelState.FAILED:
            said = report.failure
            self._failure = load_error(self._launch.model, said.reason, said.message, said.metadata)
            self._report_fault("")
        elif self._is_ready and report.state in LEAVING_STATES:
            self._leave()
        elif self._is_ready and not was_ready:
            self._post(Ready(report.model))
        elif not self._is_ready and progress != self._progress:
            self._progress = progress
            self._post(Progressed(progress))

    def _leave(self) -> None:
        """Tell that the worker takes no more requests, though nobody here asked it to end."""
        if not self._is_leaving and not self._stop_asked.done():
            self._log.warning("worker ends unasked")
            self._is_leaving = True
            self._post(Leaving())

    def _report_fault(self, problem: str, cause: ExitCause = ExitCause.DIED) -> None:
        if not self._fault.done():
            self._fault.set_result((cause, problem))

    def _suspect(self, is_suspect: bool) -> None:
        if is_suspect != self._is_suspect:
            self._is_suspect = is_suspect
            self._post(Suspected() if is_suspect else Recovered())

    def _resolve_exit(self, child_exit: asyncio.Future[ChildExit]) -> None:
        ended = child_exit.result()
        cause = ExitCause.UNLOADED if self._stop_asked.done() else ExitCause.DIED
        self._give_up(Exit(cause, ended.signal, ended.code, ended.last_lines))

    def _give_up(self, ended: Exit) -> None:
        if not self._exit.done():
            self._exit.set_result(ended)


def longest_stop_s(limits: StopLimits) -> float:
    """Return how long the whole stop ladder can take, in seconds."""
    rungs_s = limits.dump_s + limits.terminate_s + limits.interrupt_s + limits.reap_s + limits.own_end_s
    return FOOTPRINT_LIMIT_S + CLOSE_GRACE_S + 2 * limits.shutdown_s + rungs_s


def _remove(socket: Path) -> None:
    with contextlib.suppress(OSError):  # Its folder may be gone, or another one's by now.
        socket.unlink(missing_ok=True)


async def _footprint(pid: int) -> int:
    with contextlib.suppress(TimeoutError, RuntimeError):  # RuntimeError: the system starts no thread for it.
        async with asyncio.timeout(FOOTPRINT_LIMIT_S):
            return await asyncio.to_thread(footprint_bytes, pid) or 0
    return 0


def _failure_in(model: str, last_lines: tuple[str, ...]) -> GatewayError:
    """Return the failure that a worker wrote as its last line, for when its report did not arrive."""
    said = json_object(last_lines[-1]) if last_lines else {}
    if not {"reason", "message"} <= said.keys():
        return ModelLoadFailed(model, "its worker did not say why.")
    facts = {key: str(value) for key, value in json_object(json.dumps(said.get("metadata"))).items()}
    return load_error(model, str(said["reason"]), str(said["message"]), facts)
