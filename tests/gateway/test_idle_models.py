"""Models that nobody uses go after their time, and no request is lost by that."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import ModelUnloading
from gateway.model_status import Keeping, LoadOptions
from tests.gateway.farm import LIMIT_S, Farm, S
from tests.support.scripted import is_alive

SHORT_S = 0.3


class Forgetful(Farm):
    """A farm whose models go when they are idle."""

    async def begin(self, **keeping: Keeping) -> None:
        await self.workers.stop(0.0)
        workers = self.workers_with(keeping=lambda name: keeping.get(name, Keeping(idle_ttl_s=SHORT_S)))
        await workers.start()


@pytest.fixture
async def farm(tmp_path: Path) -> AsyncIterator[Forgetful]:
    farm = Forgetful(tmp_path)
    await farm.begin()
    yield farm
    await farm.workers.stop(0.0)
    farm.sockets.close()


async def test_a_model_that_nobody_uses_goes_and_the_next_request_loads_it_again(farm: Forgetful) -> None:
    first = await farm.ready_pid()
    told = farm.workers.state("a").unload_time_s
    assert told is not None
    assert 0 < told - time.time() <= SHORT_S
    await farm.until(S.UNLOADED)
    assert not is_alive(first)
    assert farm.workers.state("a").unload_time_s is None
    assert await farm.ready_pid() != first


async def test_a_job_longer_than_the_idle_time_is_not_idle(farm: Forgetful) -> None:
    with await farm.workers.acquire("a", LIMIT_S) as lease:
        assert farm.workers.state("a").unload_time_s is None
        await asyncio.wait([lease.instance.exit], timeout=3 * SHORT_S)
        assert farm.is_in(S.ACTIVE)
    await farm.until(S.UNLOADED)


async def test_the_idle_time_of_a_model_begins_when_it_is_ready(farm: Forgetful) -> None:
    farm.script(reports=6, pause_s=SHORT_S / 3)
    await farm.workers.load("a", None, wait=True)
    told = farm.workers.state("a").unload_time_s
    assert told is not None
    assert told - time.time() > SHORT_S / 2
    await farm.until(S.UNLOADED)


async def test_each_request_begins_the_idle_time_anew(farm: Forgetful) -> None:
    first = await farm.ready_pid()
    for _ in range(6):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=SHORT_S / 3)
        assert await farm.ready_pid() == first


async def test_a_model_that_was_loaded_and_never_used_goes_too_but_not_where_it_goes_after_the_last_request(
    farm: Forgetful,
) -> None:
    await farm.workers.load("b", None, wait=True, keeping=Keeping(idle_ttl_s=0.0))
    await farm.workers.load("a", None, wait=True)
    await farm.until(S.UNLOADED)
    assert farm.is_in(S.ACTIVE, "b")
    await farm.ready_pid("b")
    await farm.until(S.UNLOADED, "b")


async def test_a_pinned_model_stays_however_idle_until_it_is_pinned_no_more(farm: Forgetful) -> None:
    await farm.workers.load("a", None, wait=True, keeping=Keeping(pinned=True))
    await farm.workers.load("b", None, wait=True)
    await farm.until(S.UNLOADED, "b")
    assert farm.is_in(S.ACTIVE)
    await farm.workers.load("a", None, wait=True, keeping=Keeping(pinned=False))
    await farm.until(S.UNLOADED)


async def test_what_a_load_chose_outlives_an_idle_time_and_not_an_unload(farm: Forgetful) -> None:
    options, keeping = LoadOptions(context_tokens=512), Keeping(idle_ttl_s=0.1)
    await farm.workers.load("a", options, wait=True, keeping=keeping)
    await farm.until(S.UNLOADED)
    await farm.ready_pid()
    status = farm.workers.state("a")
    assert (status.options, status.keeping, farm.told_options) == (options, keeping, [options, options])
    await farm.workers.unload("a", 0.0)
    status = farm.workers.state("a")
    assert (status.options, status.keeping) == (LoadOptions(), Keeping())


async def test_what_was_chosen_in_an_earlier_life_is_taken_over_without_a_load(farm: Forgetful) -> None:
    options, keeping = LoadOptions(max_batch_rows=3), Keeping(pinned=True)
    assert farm.workers.restore("a", options, keeping)
    assert not farm.workers.restore("gone", options, keeping)
    assert (farm.is_in(S.UNLOADED), farm.workers.state("a").pinned) == (True, True)
    await farm.ready_pid()
    assert farm.told_options == [options]
    assert not farm.workers.restore("a", LoadOptions(), Keeping())


async def test_no_request_that_races_the_end_of_an_idle_time_is_lost(farm: Forgetful) -> None:
    await farm.begin(a=Keeping(idle_ttl_s=0.01))
    dice = random.Random(1)

    async def client() -> None:
        while farm.starts() < 3:
            with await farm.workers.acquire("a", 30.0) as lease:
                assert not lease.instance.exit.done()
            await asyncio.wait([lease.instance.exit], timeout=dice.uniform(0.005, 0.03))

    async with asyncio.timeout(50):
        await asyncio.gather(client(), client())
    await farm.until(S.UNLOADED)


async def test_a_request_that_races_an_unload_is_served_by_the_old_or_the_new_worker(farm: Forgetful) -> None:
    dice = random.Random(1)
    lost = 0

    async def client() -> None:
        nonlocal lost
        for _ in range(4):
            try:
                with await farm.workers.acquire("a", 30.0):
                    await asyncio.sleep(0)
            except ModelUnloading:
                lost += 1

    async def operator() -> None:
        for _ in range(2):
            await farm.workers.unload("a", dice.choice([0.0, 1.0]))

    await asyncio.gather(client(), client(), client(), operator())
    assert lost == 0
