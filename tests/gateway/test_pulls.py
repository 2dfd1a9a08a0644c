"""Pulls that are shared: who joins, who waits, and when one stops."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.errors import QueueFull, ServerDraining
from gateway.hub.messages import Done, Order, Progress
from gateway.pull_errors import HubUnreachable
from gateway.pulls import MAX_PULLS, Pulls
from tests.support.waiting import eventually

ORDER = Order("org/m")


class Runs:
    """Stands for the processes of pulls: each goes on until the test lets it."""

    def __init__(self) -> None:
        self.started: list[Order] = []
        self.cancelled: list[Order] = []
        self.tell: Callable[[Progress], None] = lambda _: None
        self.may_end = asyncio.Event()
        self.may_die = asyncio.Event()
        self.may_die.set()
        self.error: Exception | None = None
        self.listed = 0

    async def run(self, order: Order, on_progress: Callable[[Progress], None]) -> Done:
        self.started.append(order)
        self.tell = on_progress
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(order)
            await self.may_die.wait()
            raise
        if self.error is not None:
            raise self.error
        return Done("c", "/x")

    async def list_again(self) -> None:
        self.listed += 1


async def followed(pulls: Pulls, order: Order = ORDER) -> list[Progress]:
    return [progress async for progress in pulls.follow(order)]


async def under_way(runs: Runs, pulls: Pulls, order: Order = ORDER) -> "asyncio.Task[list[Progress]]":
    count = len(runs.started)
    task = asyncio.create_task(followed(pulls, order))
    await eventually(lambda: len(runs.started) > count)
    return task


async def test_a_second_caller_joins_and_both_see_the_end() -> None:
    runs = Runs()
    pulls = Pulls(runs.run, runs.list_again)
    first = await under_way(runs, pulls)
    runs.tell(Progress("skipped", "x.bin"))
    runs.tell(Progress("downloading", "a", 1, 2))
    second = asyncio.create_task(followed(pulls))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    runs.tell(Progress("downloading", "a", 2, 2))
    runs.may_end.set()
    for told in (await first, await second):
        assert told[0] == Progress("skipped", "x.bin")
        assert told[-1] == Progress("downloading", "a", 2, 2)
    assert (runs.started, runs.listed, pulls.is_pulling("org/m")) == ([ORDER], 1, False)


async def test_a_pull_stops_when_the_last_of_its_callers_goes() -> None:
    runs = Runs()
    pulls = Pulls(runs.run, runs.list_again)
    first = await under_way(runs, pulls)
    second = asyncio.create_task(followed(pulls))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert runs.cancelled == []
    second.cancel()
    await asyncio.wait([second])
    await eventually(lambda: runs.cancelled == [ORDER])
    assert not pulls.is_pulling("org/m")


async def test_a_pull_that_is_being_stopped_is_not_joined() -> None:
    runs = Runs()
    runs.may_die.clear()
    pulls = Pulls(runs.run, runs.list_again)
    first = await under_way(runs, pulls)
    first.cancel()
    await eventually(lambda: runs.cancelled == [ORDER])
    second = asyncio.create_task(followed(pulls))
    await asyncio.sleep(0)
    assert runs.started == [ORDER]
    runs.may_end.set()
    runs.may_die.set()
    assert (await second)[0] == Progress("waiting")
    assert runs.started == [ORDER, ORDER]


async def test_another_revision_waits_for_its_turn() -> None:
    runs = Runs()
    pulls = Pulls(runs.run, runs.list_again)
    first = await under_way(runs, pulls)
    other = Order("org/m", "v2")
    second = asyncio.create_task(followed(pulls, other))
    await asyncio.sleep(0)
    assert runs.started == [ORDER]
    runs.may_end.set()
    await first
    assert (await second)[0] == Progress("waiting")
    assert runs.started == [ORDER, other]


async def test_everyone_is_told_of_a_failure_and_the_next_begins_anew() -> None:
    runs = Runs()
    pulls = Pulls(runs.run, runs.list_again)
    tasks = [await under_way(runs, pulls), asyncio.create_task(followed(pulls))]
    await asyncio.sleep(0)
    runs.error = HubUnreachable("org/m", "no network")
    runs.may_end.set()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in failures] == [HubUnreachable, HubUnreachable]
    runs.error = None
    await followed(pulls)
    assert runs.listed == 1


async def test_no_more_run_than_the_limit() -> None:
    runs = Runs()
    pulls = Pulls(runs.run, runs.list_again)
    tasks = [await under_way(runs, pulls, Order(f"org/m{number}")) for number in range(MAX_PULLS)]
    with pytest.raises(QueueFull):
        await followed(pulls)
    await pulls.close()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in failures] == [ServerDraining] * MAX_PULLS
    assert len(runs.cancelled) == MAX_PULLS
