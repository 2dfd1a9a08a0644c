"""Unloads and stops end workers, and what is asked of them meanwhile."""

import asyncio
import os
import random
import signal

from gateway.back_off import BackOffLimits
from gateway.errors import ModelUnloading, ServerDraining
from gateway.model_status import ExitCause
from gateway.stop_ladder import StopLimits
from tests.gateway.farm import LIMIT_S, MODELS, Farm, S, refusal
from tests.support.scripted import events_in, is_alive
from tests.support.waiting import eventually


def told(farm: Farm, model: str = "a") -> list[float]:
    """Return after how many seconds its requests will be ended, each time that a worker was told."""
    return [noted["remaining_s"] for noted in events_in(farm.folders[model], "ending")]


async def test_an_unload_returns_with_the_process_gone_and_its_bytes(farm: Farm) -> None:
    pid = await farm.ready_pid()
    freed_bytes = await farm.workers.unload("a", 1.0)
    assert freed_bytes > 1 << 20
    assert not is_alive(pid)
    assert farm.is_in(S.UNLOADED)
    assert await farm.workers.unload("a", 1.0) == 0


async def test_an_unload_waits_for_the_requests_of_the_model(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    unloading = asyncio.create_task(farm.workers.unload("a", 60.0))
    await farm.until(S.DRAINING)
    assert not lease.instance.exit.done()
    lease.release()
    assert await unloading > 0
    assert (await lease.instance.exit).cause is ExitCause.UNLOADED


async def test_an_unload_tells_the_worker_at_once_how_long_its_requests_have(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    unloading = [asyncio.create_task(farm.workers.unload("a", 60.0))]
    await eventually(lambda: told(farm) == [60.0], LIMIT_S)
    assert not events_in(farm.folders["a"], "shutdown")
    unloading.append(asyncio.create_task(farm.workers.unload("a", 40.0)))
    await eventually(lambda: told(farm) == [60.0, 40.0], LIMIT_S)
    lease.release()
    await asyncio.gather(*unloading)


async def test_a_worker_without_requests_is_told_nothing_before_its_shutdown(farm: Farm) -> None:
    await farm.ready_pid()
    await farm.workers.unload("a", 60.0)
    assert told(farm) == []
    assert events_in(farm.folders["a"], "shutdown")


async def test_a_worker_that_stands_still_holds_up_no_unload_by_what_it_is_to_be_told(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    os.kill(lease.instance.pid, signal.SIGSTOP)
    async with asyncio.timeout(LIMIT_S):
        assert await farm.workers.unload("a", 0.1) > 0
    lease.release()


async def test_the_end_of_all_is_told_to_workers_that_serve_and_to_those_that_load(farm: Farm) -> None:
    farm.script("b", reports=10, pause_s=0.05)
    lease = await farm.workers.acquire("a", LIMIT_S)
    loading = asyncio.create_task(farm.workers.acquire("b", LIMIT_S))
    await farm.until(S.LOADING, "b")
    farm.workers.announce_ending(50.0)
    leases = (lease, await loading)
    await eventually(lambda: bool(told(farm, "a") and told(farm, "b")), LIMIT_S)
    assert told(farm, "a") == [50.0]
    (left_s,) = told(farm, "b")
    assert 50.0 - LIMIT_S < left_s < 50.0
    for one in leases:
        one.release()


async def test_an_unload_waits_no_longer_than_its_grace(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    await farm.workers.unload("a", 0.1)
    assert (await lease.instance.exit).cause is ExitCause.UNLOADED
    lease.release()


async def test_a_worker_that_ignores_the_shutdown_is_killed_while_others_load(farm: Farm) -> None:
    farm.script(stubborn=True)
    pid = await farm.ready_pid("a")
    unloading = asyncio.create_task(farm.workers.unload("a", 0.0))
    await farm.until(S.UNLOADING)
    await farm.ready_pid("b")
    assert not unloading.done()
    await unloading
    assert not is_alive(pid)


async def test_a_request_in_the_midst_of_an_unload_is_served(farm: Farm) -> None:
    await farm.ready_pid()
    unloading = asyncio.create_task(farm.workers.unload("a", 1.0))
    await farm.until(S.UNLOADING)
    with await farm.workers.acquire("a", LIMIT_S) as lease:
        assert not lease.instance.exit.done()
    assert await unloading > 0


async def test_requests_that_race_with_unloads_all_end(farm: Farm) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    dice = random.Random(seed)

    async def request() -> None:
        await asyncio.sleep(dice.random())
        with await farm.workers.acquire("a", LIMIT_S) as lease:
            await asyncio.wait([lease.instance.exit], timeout=dice.random() / 10)

    async def unload() -> None:
        await asyncio.sleep(dice.random())
        await farm.workers.unload("a", dice.choice([0.0, 0.05, 1.0]))

    await asyncio.gather(*(request() for _ in range(60)), *(unload() for _ in range(6)))


async def test_a_load_that_is_unloaded_tells_who_ordered_it_and_a_request_has_it_loaded_again(farm: Farm) -> None:
    farm.script(load="stuck")
    ordered = asyncio.create_task(farm.workers.load("a", None, wait=True))
    await farm.until(S.LOADING)
    request = asyncio.create_task(farm.workers.acquire("a", LIMIT_S))
    await asyncio.sleep(0)
    farm.script()
    await farm.workers.unload("a", 0.0)
    assert isinstance(await refusal(ordered), ModelUnloading)
    with await request:
        assert len(farm.told_options) == 2


async def test_an_unload_ends_a_pause(farm: Farm) -> None:
    farm.script(load="crash")
    await farm.workers.stop(0.0)
    workers = farm.workers_with(BackOffLimits(first_s=30.0))
    await workers.start()
    await workers.load("a", None, wait=False)
    await farm.until(S.BACKING_OFF)
    assert await workers.unload("a", 0.0) == 0
    assert farm.is_in(S.UNLOADED)


async def test_a_stop_ends_all_workers_at_once_and_refuses_requests(farm: Farm) -> None:
    farm.stop_limits = StopLimits(shutdown_s=60.0, terminate_s=60.0, interrupt_s=60.0)
    farm.script("a", stubborn=True)
    farm.script("b", stubborn=True)
    pids = [await farm.ready_pid(model) for model in MODELS]
    stopping = asyncio.create_task(farm.workers.stop(0.0))
    await eventually(lambda: all(events_in(folder, "shutdown") for folder in farm.folders.values()), LIMIT_S)
    assert all(is_alive(pid) for pid in pids)
    farm.workers.hurry()
    await stopping
    assert not any(is_alive(pid) for pid in pids)
    assert isinstance(await refusal(farm.workers.acquire("a", 1.0)), ServerDraining)


async def test_a_stop_lets_requests_finish_within_its_grace(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    stopping = asyncio.create_task(farm.workers.stop(60.0))
    await farm.until(S.DRAINING)
    assert not lease.instance.exit.done()
    lease.release()
    await stopping


async def test_a_second_stop_shortens_the_grace_of_the_first(farm: Farm) -> None:
    await farm.workers.acquire("a", LIMIT_S)
    stopping = asyncio.create_task(farm.workers.stop(60.0))
    await farm.until(S.DRAINING)
    await farm.workers.stop(0.0)
    await stopping
    assert farm.is_in(S.UNLOADED)


async def test_a_stop_in_a_hurry_does_not_wait_for_a_worker_that_stands_still(farm: Farm) -> None:
    farm.stop_limits = StopLimits(shutdown_s=60.0, terminate_s=60.0, interrupt_s=60.0)
    farm.script(stubborn=True)
    pid = await farm.ready_pid()
    os.kill(pid, signal.SIGSTOP)
    stopping = asyncio.create_task(farm.workers.stop(0.0))
    await farm.until(S.UNLOADING)
    farm.workers.hurry()
    async with asyncio.timeout(30.0):
        await stopping
    assert not is_alive(pid)
