"""What SIGHUP does: a reload, an end where the terminal is gone, and never an end under nohup."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.hang_ups import HangUps
from tests.support.waiting import eventually


class Server:
    def __init__(self, *terminals: bool) -> None:
        self.reloads = 0
        self.ends = 0
        self.may_go_on = asyncio.Event()
        answers = iter(terminals)
        self.hang_ups = HangUps(self.reload, self.end, lambda: next(answers))

    async def reload(self) -> None:
        self.reloads += 1
        await self.may_go_on.wait()

    def end(self) -> None:
        self.ends += 1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_a_signal_has_the_settings_read_again() -> None:
    server = Server(False)
    server.hang_ups.begin()
    server.hang_ups.ready()
    os.kill(os.getpid(), signal.SIGHUP)
    await eventually(lambda: server.reloads == 1)
    assert server.ends == 0
    server.hang_ups.end()


async def test_a_signal_that_comes_too_early_waits() -> None:
    server = Server(False)
    server.hang_ups.begin()
    server.hang_ups.hung_up()
    for _ in range(5):
        await asyncio.sleep(0)
    assert server.reloads == 0
    server.hang_ups.ready()
    await eventually(lambda: server.reloads == 1)
    server.hang_ups.end()


async def test_signals_during_a_reload_make_one_more() -> None:
    server = Server(False)
    server.hang_ups.begin()
    server.hang_ups.ready()
    server.hang_ups.hung_up()
    await eventually(lambda: server.reloads == 1)
    for _ in range(3):
        server.hang_ups.hung_up()
    server.may_go_on.set()
    await eventually(lambda: server.reloads == 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert server.reloads == 2
    server.hang_ups.end()


async def test_a_terminal_that_is_gone_is_an_end() -> None:
    server = Server(True, True, False)
    server.hang_ups.begin()
    server.hang_ups.ready()
    server.hang_ups.hung_up()
    await eventually(lambda: server.reloads == 1)
    server.hang_ups.hung_up()
    assert server.ends == 1
    server.hang_ups.end()


async def test_under_nohup_a_signal_has_the_settings_read_again_and_is_never_an_end() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    server = Server(True, False)
    server.hang_ups.begin()
    server.hang_ups.ready()
    os.kill(os.getpid(), signal.SIGHUP)
    await eventually(lambda: server.reloads == 1)
    assert server.ends == 0
    server.hang_ups.end()


LEAVES = """
import os, signal
from gateway.terminal import has_terminal
primary, secondary = os.openpty()
before = has_terminal()
os.close(os.open(os.ttyname(secondary), os.O_RDWR))  # the first one that a session opens becomes its own
signal.signal(signal.SIGHUP, signal.SIG_IGN)
during = has_terminal()
os.close(primary)
os.close(secondary)
print(before, during, has_terminal())
"""


def test_a_process_whose_terminal_is_closed_has_none() -> None:
    told = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, start_new_session=True, check=True)
    assert told.stdout.split() == [b"False", b"True", b"False"]
