"""A process ends with the one that started it, whatever it is doing."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.support.worker_process import group_members
from worker import lifeline


class Started:
    """A small process with a lifeline, which says when it is about to do its work."""

    def __init__(self, code: str, *, leads: bool = True) -> None:
        watched, self.lifeline = os.pipe()
        said, saying = os.pipe()
        arm = "from worker import lifeline; import os; lifeline.arm(); os.write(1, b'x')\n"
        self.pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", arm + code],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, watched, 9), (os.POSIX_SPAWN_DUP2, saying, 1)],
            setpgroup=0 if leads else os.getpgrp(),
        )
        os.close(watched)
        os.close(saying)
        os.read(said, 1)
        os.close(said)

    def ends_after_letting_go(self) -> int:
        os.close(self.lifeline)
        wait_until(lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, 10)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def processor_s(pid: int) -> float:
    """Return how long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def test_a_process_that_waits_is_killed_with_its_group() -> None:
    started = Started("os.posix_spawn('/bin/sleep', ['sleep', '60'], {}); import time; time.sleep(60)")
    wait_until(lambda: len(group_members(started.pid)) == 2)
    assert started.ends_after_letting_go() == -signal.SIGKILL
    wait_until(lambda: not group_members(started.pid))


def test_a_process_that_computes_is_killed() -> None:
    started = Started("while True: pass")
    assert started.ends_after_letting_go() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel watches the pipe itself")
def test_a_process_that_never_gives_up_pythons_lock_is_killed() -> None:
    started = Started("import re; re.match(r'(a+)+b', 'a' * 60)")
    wait_until(lambda: processor_s(started.pid) > 0.2)
    assert started.ends_after_letting_go() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel watches the pipe itself")
def test_a_process_that_is_stopped_is_killed() -> None:
    started = Started("import signal; os.kill(os.getpid(), signal.SIGSTOP)")
    wait_until(lambda: os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None)
    assert started.ends_after_letting_go() == -signal.SIGKILL


def test_a_process_that_leads_no_group_ends_alone() -> None:
    code = Started("import time; time.sleep(60)", leads=False).ends_after_letting_go()
    assert code in {-signal.SIGKILL, lifeline.LIFELINE_FD}


def test_a_pipe_that_is_closed_already_ends_the_process() -> None:
    watched, write_end = os.pipe()
    os.close(write_end)
    code = "from worker import lifeline; lifeline.arm(); import time; time.sleep(60)"
    actions = [(os.POSIX_SPAWN_DUP2, watched, 9)]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-P", "-c", code], {}, file_actions=actions, setpgroup=0)
    os.close(watched)
    wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_only_a_pipe_is_a_lifeline(tmp_path: os.PathLike[str]) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    reading, writing = os.pipe()
    assert lifeline.is_given(reading)
    assert not lifeline.is_given(file)
    for fd in (file, reading, writing):
        os.close(fd)
    assert not lifeline.is_given(reading)
    lifeline.arm(reading)
