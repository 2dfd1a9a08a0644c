"""Which workers take turns."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.worker.turning import LEAVE, MESSAGE
from worker.claim import Claim
from worker.device_turn import device_turn
from worker.turn import Alone, SharedTurn


def none_s() -> float:
    return 0.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, int]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    yield ours, theirs.detach()
    ours.close()


def test_on_takes_turns_on_a_cpu_too(ends: tuple[socket.socket, int]):
    ours, fd = ends
    turn = device_turn("on", none_s, fd)
    assert isinstance(turn, SharedTurn)
    assert not turn.take(lambda: Claim.BULK)
    assert MESSAGE.unpack(ours.recv(16))[0] == 1
    turn.close()


def test_a_worker_on_a_cpu_takes_its_leave_where_it_may_choose(ends: tuple[socket.socket, int]):
    ours, fd = ends
    assert isinstance(device_turn("auto", none_s, fd), Alone)
    assert MESSAGE.unpack(ours.recv(16))[0] == LEAVE
    assert ours.recv(16) == b""


def test_off_looks_at_no_line(ends: tuple[socket.socket, int]):
    ours, fd = ends
    assert isinstance(device_turn("off", none_s, fd), Alone)
    os.close(fd)
    assert ours.recv(16) == b""


def test_what_is_no_line_gives_no_turns():
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        assert isinstance(device_turn("on", none_s, fd), Alone)
    finally:
        os.close(fd)
