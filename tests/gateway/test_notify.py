"""What the service manager is told, over a real datagram socket."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from gateway.notify import LONGEST_BEAT_S, Notifier
from tests.support.waiting import eventually


class Manager:
    """The other end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        """Return the lines that came since the last time."""
        lines: list[str] = []
        while True:
            try:
                lines += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    with closing(made.socket):
        yield made


@pytest.fixture
def log() -> structlog.testing.LogCapture:
    return structlog.testing.LogCapture()


def notifier(log: structlog.testing.LogCapture, **environment: str) -> Notifier:
    return Notifier(environment, structlog.wrap_logger(None, processors=[log]))


def test_readiness_reloading_and_stopping_are_told(manager: Manager, log: structlog.testing.LogCapture) -> None:
    with closing(notifier(log, NOTIFY_SOCKET=str(manager.path))) as told:
        told.ready("0 of 1 models loaded")
        assert manager.told() == ["READY=1", "STATUS=0 of 1 models loaded"]
        told.reloading(1.5)
        assert manager.told() == ["RELOADING=1", "MONOTONIC_USEC=1500000"]
        told.stopping(70.0)
        assert manager.told() == ["STOPPING=1", "STATUS=stopping", "EXTEND_TIMEOUT_USEC=70000000"]


def test_without_a_manager_nothing_is_told_and_nothing_fails(log: structlog.testing.LogCapture) -> None:
    with closing(notifier(log, WATCHDOG_USEC="3000000")) as told:
        told.ready("")
        assert (told.watchdog_s, told.beat_s, log.entries) == (None, LONGEST_BEAT_S, [])


def test_a_manager_that_is_gone_is_logged_once(tmp_path: Path, log: structlog.testing.LogCapture) -> None:
    with closing(notifier(log, NOTIFY_SOCKET=str(tmp_path / "none"))) as told:
        told.ready("")
        told.stopping(1.0)
    assert [entry["event"] for entry in log.entries] == ["the service manager cannot be told anything"]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are no files are Linux's")
def test_a_name_that_is_no_file_is_reached(log: structlog.testing.LogCapture) -> None:
    name = f"pomona-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as other:
        other.bind(f"\0{name}")
        other.setblocking(False)
        with closing(notifier(log, NOTIFY_SOCKET=f"@{name}")) as told:
            told.ready("up")
        assert other.recv(4096) == b"READY=1\nSTATUS=up"


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_the_one_of_this_process(
    manager: Manager, log: structlog.testing.LogCapture, variables: dict[str, str], watchdog_s: float | None
) -> None:
    with closing(notifier(log, NOTIFY_SOCKET=str(manager.path), **variables)) as told:
        assert told.watchdog_s == watchdog_s


async def test_the_watchdog_is_fed_until_something_is_not_sound(
    manager: Manager, log: structlog.testing.LogCapture
) -> None:
    is_sound, status = True, "one"
    with closing(notifier(log, NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="30000")) as told:
        watching = asyncio.create_task(told.watch(lambda: is_sound, lambda: status))
        lines: list[str] = []
        await eventually(lambda: (lines.extend(manager.told()), lines.count("WATCHDOG=1") >= 3)[1])
        assert lines.count("STATUS=one") == 1
        status = "two"
        await eventually(lambda: "STATUS=two" in manager.told())
        is_sound = False
        await asyncio.wait_for(watching, 5.0)
        manager.told()
        await asyncio.sleep(0)
        assert manager.told() == []


async def test_what_a_full_socket_does_not_take_comes_with_the_next_beat(
    manager: Manager, log: structlog.testing.LogCapture
) -> None:
    with closing(notifier(log, NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="30000")) as told:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as crowd:
            crowd.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    crowd.sendto(b"X=1", str(manager.path))
        told.ready("up")
        assert "READY=1" not in manager.told()
        watching = asyncio.create_task(told.watch(lambda: True, lambda: "up"))
        lines: list[str] = []
        await eventually(lambda: (lines.extend(manager.told()), "READY=1" in lines)[1])
        watching.cancel()
        assert "STATUS=up" in lines


async def test_a_loop_that_stands_still_feeds_nothing(manager: Manager, log: structlog.testing.LogCapture) -> None:
    with closing(notifier(log, NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="30000")) as told:
        watching = asyncio.create_task(told.watch(lambda: True, lambda: ""))
        await eventually(lambda: "WATCHDOG=1" in manager.told())
        manager.told()
        manager.socket.setblocking(True)
        manager.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):  # the loop stands still in here, for three times the watchdog's time
            manager.socket.recv(4096)
        watching.cancel()
