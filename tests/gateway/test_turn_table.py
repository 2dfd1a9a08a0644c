"""The table of turns over real lines; workers are sockets that the test writes and reads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import structlog

from gateway.turn_table import MAX_MESSAGES, STUCK, Seat, TurnTable
from gateway.turns import Claim, TurnLimits
from tests.support.waiting import eventually

MESSAGE = struct.Struct("<BBHIQ")
WANT, RELEASE, STAY, LEAVE, GRANT, RECALL = range(1, 7)
WANTED, COMPANY, OTHERS = 1, 2, 4
STEP_S = 0.25


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """The worker's end of a line."""

    def __init__(self, table: TurnTable, name: str) -> None:
        self.faults: list[str] = []
        self.seat: Seat = table.seat(name, self.faults.append)
        self.end = socket.socket(fileno=socket.dup(self.seat.child_fd))
        self.end.setblocking(False)
        self.seat.begin()

    def say(self, kind: int, detail: int = 0, lease: int = 0, micros: int = 0) -> None:
        self.end.sendall(MESSAGE.pack(kind, detail, 0, lease, micros))

    async def hear(self) -> tuple[int, int, int]:
        """Return kind, detail and lease of the next message."""
        async with asyncio.timeout(10):
            data = await asyncio.get_running_loop().sock_recv(self.end, MESSAGE.size)
        kind, detail, _, lease, _ = MESSAGE.unpack(data)
        return kind, detail, lease


class Room:
    """A table, its clock, and the workers at it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.log = structlog.testing.LogCapture()
        log = structlog.wrap_logger(None, processors=[self.log])
        self.table = TurnTable(TurnLimits(), log, self.clock)
        self.workers: list[Worker] = []

    def worker(self, name: str) -> Worker:
        worker = Worker(self.table, name)
        self.workers.append(worker)
        return worker

    async def holder(self, name: str = "holder") -> tuple[Worker, int]:
        """Return a worker that has the turn, and the turn's number."""
        worker = self.worker(name)
        worker.say(WANT, Claim.BULK)
        kind, _, lease = await worker.hear()
        assert kind == GRANT
        return worker, lease

    async def pass_s(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let time pass for the table while its timer works, and see what comes of it."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.now += STEP_S
            self.table._look()
        await eventually(until)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    room = Room()
    yield room
    for worker in room.workers:
        worker.seat.leave()
        worker.end.close()
    assert room.table.num_seats == 0


async def test_a_turn_goes_from_one_to_the_other(room: Room):
    first, lease = await room.holder()
    second = room.worker("second")
    second.say(WANT, Claim.STEADY)
    assert await first.hear() == (RECALL, 0, lease)
    first.say(RELEASE, 1 + Claim.BULK, lease)
    assert await second.hear() == (GRANT, WANTED | COMPANY | OTHERS, lease + 1)
    assert room.table.holder == "second"
    second.say(RELEASE, 0, lease + 1)
    assert await first.hear() == (GRANT, COMPANY | OTHERS, lease + 2)


async def test_messages_may_come_in_pieces(room: Room):
    worker = room.worker("a")
    data = MESSAGE.pack(WANT, 0, 0, 0, 0)
    worker.end.sendall(data[:5])
    await asyncio.sleep(0)
    worker.end.sendall(data[5:])
    assert (await worker.hear())[0] == GRANT


async def test_a_worker_that_leaves_frees_its_turn(room: Room):
    first, _ = await room.holder()
    second = room.worker("second")
    second.say(WANT)
    await first.hear()
    first.say(LEAVE)
    first.end.close()
    assert (await second.hear())[0] == GRANT
    assert first.faults == []


async def test_a_holder_whose_line_ends_keeps_the_turn_until_its_process_is_gone(room: Room):
    first, _ = await room.holder()
    second = room.worker("second")
    second.say(WANT)
    await first.hear()
    first.end.close()
    await eventually(lambda: first.seat.member.is_out)
    assert (room.table.holder, first.faults) == ("holder", [])
    first.seat.leave()
    assert (await second.hear())[0] == GRANT


async def test_a_holder_that_does_not_give_back_is_reported_once_and_its_turn_is_free_when_it_is_gone(room: Room):
    first, lease = await room.holder()
    second = room.worker("second")
    second.say(WANT)
    await first.hear()
    await room.pass_s(10.0, lambda: first.faults == [STUCK])
    room.table._look()
    first.say(RELEASE, 0, lease)
    await asyncio.sleep(0)
    assert (first.faults, room.table.holder, room.table.num_stuck) == ([STUCK], "holder", 1)
    first.seat.leave()
    assert (await second.hear())[0] == GRANT
    assert [event.what for event in room.table.history][-3:] == ["stuck", "gone", "granted"]


async def test_what_a_worker_said_counts_although_the_gateway_has_not_read_it(room: Room):
    first, lease = await room.holder()
    second = room.worker("second")
    second.say(WANT)
    await first.hear()
    for _ in range(round(9.75 / STEP_S)):
        room.clock.now += STEP_S
        room.table._look()
    first.say(RELEASE, 0, lease)
    room.clock.now += STEP_S  # it is due, and its word has not been read
    room.table._look()
    assert first.faults == []
    assert (await second.hear())[0] == GRANT


async def test_a_holder_is_not_blamed_for_time_in_which_the_gateway_stood_still(room: Room):
    first, _ = await room.holder()
    second = room.worker("second")
    second.say(WANT)
    await first.hear()
    room.clock.now += 60.0
    room.table._look()
    assert first.faults == []


RUDE = (
    MESSAGE.pack(GRANT, 0, 0, 1, 0),
    MESSAGE.pack(WANT, 9, 0, 0, 0),
    MESSAGE.pack(RELEASE, 0, 0, 99, 0),
    b"\xff" * MESSAGE.size,
)


@pytest.mark.parametrize("said", RUDE)
async def test_a_worker_that_breaks_the_rules_is_ended(room: Room, said: bytes):
    worker = room.worker("rude")
    worker.end.sendall(said)
    await eventually(lambda: len(worker.faults) == 1)
    worker.end.sendall(MESSAGE.pack(WANT, 0, 0, 0, 0))
    await asyncio.sleep(0)
    assert room.table.holder == ""


async def test_a_worker_that_says_too_much_is_ended_and_one_that_says_as_much_in_more_time_is_not(room: Room):
    """The clock stands still for the first, and goes on by a second a message for the other."""
    hasty, calm = room.worker("hasty"), room.worker("calm")
    some = MESSAGE.pack(WANT, Claim.BULK, 0, 0, 0) * 128
    for _ in range(MAX_MESSAGES // 128 + 1):
        await asyncio.get_running_loop().sock_sendall(calm.end, some)
        await asyncio.sleep(0)
        room.clock.now += 1.0
    assert calm.faults == []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            while not hasty.faults:
                await asyncio.get_running_loop().sock_sendall(hasty.end, some)
                await asyncio.sleep(0)
    assert hasty.faults == ["it says too much on its turn line"]


async def test_a_worker_that_does_not_read_is_ended(room: Room):
    worker, _ = await room.holder()
    other = room.worker("other")
    worker.seat.line._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with contextlib.suppress(BlockingIOError):
        while True:
            worker.seat.line._ours.send(bytes(4096))
    other.say(WANT)
    await eventually(lambda: worker.faults == ["it does not read its turn line"])


async def test_a_worker_that_is_gone_before_it_waited_is_no_trouble(room: Room):
    worker = room.worker("a")
    worker.seat.leave()
    worker.seat.leave()
    assert (await room.holder())[1] == 1
