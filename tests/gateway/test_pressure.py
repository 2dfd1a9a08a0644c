"""How full memory is: which level a reading leads to, and how readings come."""

import asyncio
import os
from collections.abc import Iterable

import pytest

from gateway.memory import MachineMemory
from gateway.model_status import PressureLevel
from gateway.pressure import Marks, Pressure, Reading, Sampler, read_system

P = PressureLevel
BUDGET = 1000


def reading(workers: int = 0, used: int | None = 0) -> Reading:
    """Return what was measured of a machine of 2,000 bytes, of which models may take 1,000."""
    return Reading(0.0, MachineMemory(2000, None if used is None else 2000 - used), {1: workers // 2, 2: workers // 2})


def levels(*readings: Reading, is_as_promised: bool = False) -> list[PressureLevel]:
    pressure = Pressure(Marks(), BUDGET)
    found: list[PressureLevel] = []
    for one in readings:
        pressure.take(one, is_as_promised=is_as_promised)
        found.append(pressure.level)
    return found


@pytest.mark.parametrize(
    ("workers", "used", "level"),
    [
        (848, 0, P.NORMAL),
        (850, 0, P.SOFT_LIMIT),
        (948, 0, P.SOFT_LIMIT),
        (950, 0, P.HARD_LIMIT),
        (0, 1699, P.NORMAL),
        (0, 1700, P.SOFT_LIMIT),
        (0, 1900, P.HARD_LIMIT),
        (850, 1900, P.HARD_LIMIT),
        (848, None, P.NORMAL),
    ],
)
def test_the_fuller_of_budget_and_machine_counts(workers: int, used: int | None, level: PressureLevel) -> None:
    assert levels(reading(workers, used)) == [level]


def test_a_level_ends_some_way_below_where_it_begins() -> None:
    used = [1900, 1810, 1790, 1700, 1610, 1590, 1690]
    assert levels(*(reading(used=one) for one in used)) == [
        P.HARD_LIMIT,
        P.HARD_LIMIT,
        P.SOFT_LIMIT,
        P.SOFT_LIMIT,
        P.SOFT_LIMIT,
        P.NORMAL,
        P.NORMAL,
    ]


def test_workers_that_take_what_was_reserved_for_them_are_no_danger_and_others_of_the_machine_are() -> None:
    assert levels(reading(990), reading(990, 1900), is_as_promised=True) == [P.SOFT_LIMIT, P.HARD_LIMIT]


@pytest.mark.parametrize(
    ("one", "excess"), [(reading(840), 0), (reading(900), 100), (reading(0, 1700), 100), (reading(900, 1800), 200)]
)
def test_what_must_go_is_what_is_above_the_slack(one: Reading, excess: int) -> None:
    pressure = Pressure(Marks(), BUDGET)
    pressure.take(one, is_as_promised=False)
    assert pressure.excess_bytes == excess


def test_the_system_is_asked_of_this_process() -> None:
    found = read_system([os.getpid(), 2**22 + 1], 7.0)
    assert found.began_s == 7.0
    assert found.machine.total_bytes > 1 << 20
    assert list(found.footprints) == [os.getpid()]
    assert found.footprints[os.getpid()] > 1 << 20


async def test_readings_come_one_after_the_other_and_at_once_when_wanted() -> None:
    taken: asyncio.Queue[Reading] = asyncio.Queue()
    told: list[tuple[int, ...]] = []

    def read(pids: Iterable[int], now_s: float) -> Reading:
        told.append(tuple(pids))
        return Reading(now_s, MachineMemory(1, 1))

    sampler = Sampler(read, 3600.0, lambda: float(len(told)))
    following = asyncio.create_task(sampler.follow(lambda: [1, 2], taken.put_nowait))
    async with asyncio.timeout(10):
        first = await taken.get()
        assert taken.empty()
        sampler.hurry()
        second = await taken.get()
    following.cancel()
    await asyncio.wait([following])
    assert (first.began_s, second.began_s, told) == (0.0, 1.0, [(1, 2), (1, 2)])


async def test_a_system_that_starts_no_thread_costs_a_reading_and_not_the_readings() -> None:
    taken: asyncio.Queue[Reading] = asyncio.Queue()
    failures = [RuntimeError("can't start new thread")]

    def read(_pids: Iterable[int], now_s: float) -> Reading:
        if failures:
            raise failures.pop()
        return Reading(now_s, MachineMemory(1, 1))

    sampler = Sampler(read, 0.01, lambda: 0.0)
    following = asyncio.create_task(sampler.follow(list[int], taken.put_nowait))
    async with asyncio.timeout(10):
        await taken.get()
    following.cancel()
    await asyncio.wait([following])
