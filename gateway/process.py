"""One child process: spawned without a fork, read as it writes, and never left behind.

A child leads its own process group and holds the read end of a lifeline pipe, whose write end lives here and is
close-on-exec: when this process ends, however it ends, the child reads end of file and kills its group. When the
child ends first, what is left of its group is killed before it is reaped, while the group's number is still its own.

Sources: POSIX.1-2024 `posix_spawn` and `waitid`; kqueue(2) of macOS; grpc#43062 for why nothing here may fork.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.lines import LineCutter

LIFELINE_FD = 9
SETTINGS_FD = 10
TURN_FD = 11  # A worker's end of its turn line, where workers take turns on a device.
FIRST_SAFE_FD = 32  # Above every number that a child's descriptors are given.
MAX_SETTINGS_BYTES = 16 * 1024  # The smallest default capacity of a pipe: a write of this much never waits.
READ_BYTES = 64 * 1024
MAX_READS_AT_END = 16
LAST_LINES = 20
REAP_LIMIT_S = 5.0

OnLine = Callable[[str, str], None]
Sink = Callable[[bytes], None]


class ProcessError(Exception):
    """Raised when a child process did not do what it was started for.

    ProcessError
    ├── SpawnError
    ├── SettingsTooLargeError
    ├── RunTimeoutError
    └── OutputTooLargeError
    """


class SpawnError(ProcessError):
    """Raised when the system starts no process, or has nothing left to watch it with; says which."""


class SettingsTooLargeError(ProcessError):
    """Raised when a child's settings do not fit into a pipe."""


class RunTimeoutError(ProcessError):
    """Raised when a one-shot runs longer than its limit."""


class OutputTooLargeError(ProcessError):
    """Raised when a one-shot prints more than its limit."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: the absolute program with its arguments, and its whole environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a child ended: by its own code or by a signal, with the last lines of its standard error."""

    code: int | None
    signal: int | None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What a one-shot printed and how it ended."""

    exit: ChildExit
    stdout: bytes


class Child:
    """A process that was spawned; `exit` resolves once it is reaped and its group is gone.

    Args:
        pid: its process and group number.
        lifeline: write end of its lifeline, closed once it is reaped.
        outputs: read ends of its standard output and error, each with what takes its bytes.
        last_lines: what its standard error ended with; still growing while it runs.

    Raises:
        OSError, RuntimeError: it cannot be watched; the descriptors and the process stay the caller's.
    """

    def __init__(self, pid: int, lifeline: int, outputs: Mapping[int, Sink], last_lines: deque[str]) -> None:
        self.pid = pid
        self._lifeline = lifeline
        self._last_lines = last_lines
        self._loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[ChildExit] = self._loop.create_future()
        self._reap_lock = threading.Lock()
        self._is_reaped = False
        self._pumps: list[_Pump] = []
        with contextlib.ExitStack() as begun:
            for fd, sink in outputs.items():
                self._pumps.append(_Pump(self._loop, fd, sink))
                begun.callback(self._loop.remove_reader, fd)
            threading.Thread(target=self._reap, name=f"reap-{pid}", daemon=True).start()
            begun.pop_all()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and its descendants; nothing is sent once it is reaped."""
        with self._reap_lock:
            if not self._is_reaped:
                _kill_group(self.pid, number)

    def signal_leader(self, number: signal.Signals) -> None:
        """Send a signal to the child alone; nothing is sent once it is reaped."""
        with self._reap_lock:
            if not self._is_reaped:
                os.kill(self.pid, number)

    async def wait(self, timeout_s: float) -> ChildExit | None:
        """Wait until it is reaped, but no longer than the limit.

        Returns:
            How it ended, or None while it runs.
        """
        done, _ = await asyncio.wait([self.exit], timeout=timeout_s)
        return self.exit.result() if done else None

    def _reap(self) -> None:
        _block_until_ended(self.pid)
        with self._reap_lock:
            _kill_group(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._is_reaped = True
        os.close(self._lifeline)
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(self._finish, os.waitstatus_to_exitcode(status))

    def _finish(self, exit_code: int) -> None:
        ended_by = -exit_code if exit_code < 0 else None
        code = exit_code if exit_code >= 0 else None
        try:
            for pump in self._pumps:
                pump.finish()
        finally:  # Whatever becomes of its last lines, its end is told.
            if not self.exit.done():
                self.exit.set_result(ChildExit(code, ended_by, tuple(self._last_lines)[-LAST_LINES:]))


def spawn(command: Command, settings: bytes, on_line: OnLine, turn_fd: int | None = None) -> Child:
    """Start a child that reads `settings` from its settings descriptor.

    Args:
        command: what to start.
        settings: at most `MAX_SETTINGS_BYTES`; the child reads them to end of file.
        on_line: is called on the event loop with "stdout" or "stderr" and each line.
        turn_fd: what it gets as its turn descriptor; it stays the caller's too. None: it takes no turns.

    Raises:
        SpawnError: the system starts no process.
        SettingsTooLargeError: the settings do not fit into a pipe.
    """
    last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def on_error_line(stream: str, line: str) -> None:
        last_lines.append(line)
        on_line(stream, line)

    sinks = _line_sink("stdout", on_line), _line_sink("stderr", on_error_line)
    return _spawn(command, settings, sinks, last_lines, turn_fd)


async def run_once(command: Command, *, timeout_s: float, max_output_bytes: int) -> Output:
    """Run a command to its end and take what it prints.

    Raises:
        SpawnError: the system starts no process.
        RunTimeoutError: it ran longer than `timeout_s`; its group was killed.
        OutputTooLargeError: it printed more than `max_output_bytes`; its group was killed.
    """
    printed = bytearray()
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    too_large = asyncio.Event()

    def collect(data: bytes) -> None:
        printed.extend(data[: max_output_bytes + 1 - len(printed)])
        if len(printed) > max_output_bytes:
            too_large.set()

    child = _spawn(command, b"", (collect, _line_sink("stderr", lambda _, line: last_lines.append(line))), last_lines)
    overflow = asyncio.ensure_future(too_large.wait())
    try:
        await asyncio.wait([child.exit, overflow], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if too_large.is_set():
            raise OutputTooLargeError(f"more than {max_output_bytes} bytes")
        if not child.exit.done():
            raise RunTimeoutError(f"longer than {timeout_s} s")
        return Output(child.exit.result(), bytes(printed))
    finally:
        overflow.cancel()
        child.signal_group(signal.SIGKILL)
        await child.wait(REAP_LIMIT_S)


def _line_sink(stream: str, on_line: OnLine) -> Sink:
    cutter = LineCutter()

    def take(data: bytes) -> None:
        for line in cutter.feed(data) if data else cutter.flush():
            on_line(stream, line)

    return take


def _spawn(
    command: Command, settings: bytes, sinks: tuple[Sink, Sink], last_lines: deque[str], turn_fd: int | None = None
) -> Child:
    """Start a child; where that fails, nothing of it is left, and the reason is a `SpawnError`."""
    try:
        _make_descriptors_private()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as childs:
            null = _for_child(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), childs)
            lifeline_read, lifeline = _pipe(ours, childs, child_reads=True)
            out_write, out = _pipe(ours, childs, child_reads=False)
            error_write, error = _pipe(ours, childs, child_reads=False)
            settings_read = _filled_pipe(settings, childs)
            targets = {0: null, 1: out_write, 2: error_write, LIFELINE_FD: lifeline_read, SETTINGS_FD: settings_read}
            turn = null if turn_fd is None else _for_child(os.dup(turn_fd), childs)
            pid = _posix_spawn(command, targets | {TURN_FD: turn})
            ours.callback(_kill_and_reap, pid)
            child = Child(pid, lifeline, dict(zip((out, error), sinks, strict=True)), last_lines)
            ours.pop_all()
    except OSError as problem:
        raise SpawnError(os.strerror(problem.errno or 0)) from problem
    except RuntimeError as problem:  # That is how Python says that the system starts no thread.
        raise SpawnError("no thread to watch it") from problem
    return child


def _posix_spawn(command: Command, targets: Mapping[int, int]) -> int:
    return os.posix_spawn(
        command.argv[0],
        command.argv,
        command.environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in targets.items()],
        setpgroup=0,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def _kill_and_reap(pid: int) -> None:
    _kill_group(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _make_descriptors_private() -> None:
    """Set close-on-exec on everything but the standard streams: a sibling must never hold a lifeline or a socket."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - a listing of numbers, not of paths
        if int(name) > 2:
            with contextlib.suppress(OSError):  # The listing's own descriptor is closed by now.
                os.set_inheritable(int(name), False)


def _for_child(fd: int, childs: contextlib.ExitStack) -> int:
    """Move a descriptor above all target numbers, so that no later `dup2` overwrites it and none is onto itself."""
    try:
        safe_fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_SAFE_FD)
    finally:
        os.close(fd)
    childs.callback(os.close, safe_fd)
    return safe_fd


def _pipe(ours: contextlib.ExitStack, childs: contextlib.ExitStack, *, child_reads: bool) -> tuple[int, int]:
    """Make a pipe and return the child's end and ours."""
    read_end, write_end = os.pipe()
    child_end, our_end = (read_end, write_end) if child_reads else (write_end, read_end)
    ours.callback(os.close, our_end)
    return _for_child(child_end, childs), our_end


def _filled_pipe(data: bytes, childs: contextlib.ExitStack) -> int:
    """Return the read end of a pipe that holds `data` and then end of file."""
    if len(data) > MAX_SETTINGS_BYTES:
        raise SettingsTooLargeError(f"{len(data)} bytes, at most {MAX_SETTINGS_BYTES}")
    read_end, write_end = os.pipe()
    with open(write_end, "wb") as pipe:  # noqa: PTH123 - a descriptor, not a path
        safe_read_end = _for_child(read_end, childs)
        pipe.write(data)
    return safe_read_end


def _kill_group(pid: int, number: signal.Signals) -> None:
    # macOS answers EPERM when the group holds nothing but a process that has ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _block_until_ended(pid: int) -> None:
    """Wait in a thread of its own until a child has ended, without reaping it.

    It has no limit: the process's own life is the limit, and the stop ladder ends that.
    """
    if sys.platform == "darwin":
        with contextlib.closing(select.kqueue()) as queue, contextlib.suppress(ProcessLookupError):
            flags = select.KQ_EV_ADD | select.KQ_EV_ONESHOT
            queue.control([select.kevent(pid, select.KQ_FILTER_PROC, flags, select.KQ_NOTE_EXIT)], 1, None)
    else:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class _Pump:
    """Gives what comes out of a pipe to a sink, and an empty piece at its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, sink: Sink) -> None:
        self._loop = loop
        self._fd = fd
        self._sink = sink
        self._is_open = True
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read)

    def finish(self) -> None:
        """Take what the pipe still holds and close it, whoever else holds the other end."""
        for _ in range(MAX_READS_AT_END):
            if not self._is_open or not self._read():
                break
        self._close()

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._sink(data)
        else:
            self._close()
        return bool(data)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._sink(b"")
