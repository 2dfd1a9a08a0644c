import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.process import (
    Child,
    Command,
    OutputTooLargeError,
    RunTimeoutError,
    SettingsTooLargeError,
    SpawnError,
    run_once,
    spawn,
)
from tests.support.scarcity import descriptors_left, no_thread, open_descriptors
from tests.support.scripted import is_alive
from tests.support.waiting import eventually, wait_until

LIMIT_S = 10.0
HOLD = "import time; time.sleep(60)"


def python(code: str, **environment: str) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", code), environment)


class Lines(list[tuple[str, str]]):
    def take(self, stream: str, line: str) -> None:
        self.append((stream, line))

    def of(self, stream: str) -> list[str]:
        return [line for name, line in self if name == stream]


def silent(stream: str, line: str) -> None:
    pass


async def lines_of(code: str, settings: bytes = b"", **environment: str) -> list[str]:
    lines = Lines()
    child = spawn(python(code, **environment), settings, lines.take)
    assert await child.wait(LIMIT_S) is not None
    return lines.of("stdout")


async def started(code: str) -> tuple[Child, list[str]]:
    """Return a child that has printed its first line."""
    lines = Lines()
    child = spawn(python(code), b"", lines.take)
    await eventually(lambda: bool(lines))
    return child, lines.of("stdout")


async def test_a_child_sees_the_given_environment_only() -> None:
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE', '__CF_USER_TEXT_ENCODING'}))"
    assert await lines_of(code, COLOUR="green") == ["['COLOUR']"]


async def test_a_child_reads_its_settings_to_their_end() -> None:
    assert await lines_of("import os; print(os.fdopen(10).read())", b'{"a": 1}') == ['{"a": 1}']


async def test_a_child_has_its_own_descriptors_and_no_others() -> None:
    leaks = [os.dup(0) for _ in range(40)]
    for fd in leaks:
        os.set_inheritable(fd, True)
    found: list[int] = json.loads((await lines_of("import os; print([int(n) for n in os.listdir('/dev/fd')])"))[0])
    for fd in leaks:
        os.close(fd)
    assert sorted(set(found) - {3}) == [0, 1, 2, 9, 10, 11]  # 3 is the listing's own


async def test_a_child_leads_its_own_group() -> None:
    assert await lines_of("import os; print(os.getpgrp() == os.getpid())") == ["True"]


async def test_a_child_starts_with_default_signals_and_an_empty_mask() -> None:
    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    code = "import signal as s; print(s.getsignal(s.SIGUSR2) is s.SIG_DFL, s.pthread_sigmask(s.SIG_BLOCK, ()))"
    try:
        assert await lines_of(code) == ["True set()"]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR2, old)


async def test_an_exit_tells_the_code_and_the_last_words() -> None:
    child = spawn(python("import sys; sys.exit('no such luck')"), b"", silent)
    ended = await child.wait(LIMIT_S)
    assert ended is not None
    assert (ended.code, ended.signal, ended.last_lines) == (1, None, ("no such luck",))


async def test_an_exit_tells_the_signal() -> None:
    child = spawn(python(HOLD), b"", silent)
    child.signal_group(signal.SIGTERM)
    ended = await child.wait(LIMIT_S)
    assert ended is not None
    assert (ended.code, ended.signal) == (None, signal.SIGTERM)


async def test_a_child_that_runs_on_is_not_waited_for() -> None:
    child = spawn(python(HOLD), b"", silent)
    assert await child.wait(0.01) is None
    child.signal_group(signal.SIGKILL)
    assert await child.wait(LIMIT_S) is not None


async def test_what_a_child_leaves_behind_in_its_group_is_killed() -> None:
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {HOLD!r}]).pid, flush=True)"
    lines = Lines()
    child = spawn(python(code), b"", lines.take)
    assert await child.wait(LIMIT_S) is not None
    grandchild = int(lines.of("stdout")[0])
    await eventually(lambda: not is_alive(grandchild))


async def test_a_signal_after_the_end_reaches_nobody() -> None:
    child = spawn(python(""), b"", silent)
    await child.wait(LIMIT_S)
    child.signal_group(signal.SIGKILL)
    child.signal_leader(signal.SIGKILL)


async def test_lines_are_bounded_and_the_last_ones_are_kept() -> None:
    code = "import sys; print('x' * 100_000, file=sys.stderr)\nfor n in range(1000): print(n, file=sys.stderr)"
    lines = Lines()
    child = spawn(python(code), b"", lines.take)
    ended = await child.wait(LIMIT_S)
    assert ended is not None
    assert len(lines.of("stderr")[0]) == 4096
    assert len(lines) == 1001
    assert ended.last_lines == tuple(str(n) for n in range(980, 1000))


async def test_bytes_that_are_no_text_do_not_stop_the_reading() -> None:
    assert await lines_of("import os; os.write(1, b'\\xff\\xfe\\nend')") == ["\ufffd\ufffd", "end"]


async def test_a_program_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(SpawnError):
        spawn(Command(("/no/such/program",), {}), b"", silent)


async def test_settings_that_a_pipe_may_not_hold_are_refused() -> None:
    with pytest.raises(SettingsTooLargeError):
        spawn(python(""), b"x" * 20_000, silent)


async def test_nothing_stays_open_after_a_child() -> None:
    await lines_of("")
    before = open_descriptors()
    for _ in range(5):
        await lines_of("print('hello')")
    assert open_descriptors() == before


@pytest.mark.parametrize("left", range(10))
async def test_a_start_without_enough_descriptors_is_an_error_of_ours_and_leaves_none_open(left: int) -> None:
    await lines_of("")
    before = open_descriptors()
    with descriptors_left(left), pytest.raises(SpawnError, match=r"Too many open files|Invalid argument"):
        spawn(python(HOLD), b"", silent)
    assert open_descriptors() == before


async def test_a_start_without_a_thread_is_an_error_of_ours_and_leaves_nothing() -> None:
    await lines_of("")
    before, children = open_descriptors(), child_pids()
    with no_thread(), pytest.raises(SpawnError, match="no thread"):
        spawn(python(HOLD), b"", silent)
    assert open_descriptors() == before
    assert child_pids() <= children
    child, lines = await started(f"print('hello', flush=True); {HOLD}")
    assert lines == ["hello"]
    child.signal_group(signal.SIGKILL)
    await child.wait(LIMIT_S)


def child_pids() -> set[str]:
    listed = subprocess.run(("ps", "-A", "-o", "pid=,ppid=,comm="), capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return {pid for pid, parent, command in rows if parent == str(os.getpid()) and command != "ps"}


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_an_end_is_told_though_its_last_lines_find_no_taker() -> None:
    def broken(stream: str, line: str) -> None:
        raise OSError("nobody reads it")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    child = spawn(python("print('a')"), b"", broken)
    wait_until(lambda: not is_there(child.pid), LIMIT_S)  # The loop stands still: its end is what it hears first.
    ended = await child.wait(LIMIT_S)
    assert ended is not None
    assert ended.code == 0


LIFELINE = "import os; print(os.getpid(), flush=True); os.read(9, 1)"


async def test_a_lifeline_ends_with_the_process_that_holds_it_though_a_sibling_lives() -> None:
    code = f"""
import asyncio, sys
from gateway.process import Command, spawn
async def main():
    for code in ({LIFELINE!r}, {HOLD!r}):
        spawn(Command((sys.executable, "-I", "-S", "-c", code), {{}}), b"", lambda _, line: print(line, flush=True))
    await asyncio.sleep(60)
asyncio.run(main())
"""
    lines = Lines()
    parent = spawn(Command((sys.executable, "-P", "-c", code), {}), b"", lines.take)
    await eventually(lambda: bool(lines), LIMIT_S)
    grandchild = int(lines.of("stdout")[0])
    assert is_alive(grandchild)
    parent.signal_leader(signal.SIGKILL)
    await eventually(lambda: not is_alive(grandchild), 1.0)


async def test_a_one_shot_gives_what_it_prints() -> None:
    output = await run_once(python("print('a'); print('b')"), timeout_s=LIMIT_S, max_output_bytes=100)
    assert (output.stdout, output.exit.code) == (b"a\nb\n", 0)


async def test_a_one_shot_that_fails_gives_its_code_and_last_words() -> None:
    output = await run_once(python("import sys; print('{}'); sys.exit('bad')"), timeout_s=LIMIT_S, max_output_bytes=100)
    assert (output.stdout, output.exit.code, output.exit.last_lines) == (b"{}\n", 1, ("bad",))


async def test_a_one_shot_over_its_time_is_killed_with_its_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        f"import os, subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {HOLD!r}])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(60)"
    )
    with pytest.raises(RunTimeoutError):
        await run_once(python(code), timeout_s=1.0, max_output_bytes=100)
    await eventually(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


async def test_a_one_shot_that_prints_without_end_is_killed() -> None:
    with pytest.raises(OutputTooLargeError):
        await run_once(python("while True: print('x' * 1000)"), timeout_s=LIMIT_S, max_output_bytes=5000)


async def test_a_cancelled_one_shot_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    task = asyncio.create_task(run_once(python(code), timeout_s=LIMIT_S, max_output_bytes=100))
    await eventually(lambda: pid.exists() and bool(pid.read_text()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(int(pid.read_text()))
