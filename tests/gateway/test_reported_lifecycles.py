"""Lives of models that users of other servers reported as broken (case 16 of the reported ones)."""

import asyncio
import time

from gateway.errors import ModelFailed
from gateway.model_status import ModelState
from tests.gateway.farm import HOLD, LIMIT_S, QUICK, Farm, refusal
from tests.support.scripted import is_alive
from tests.support.waiting import eventually

POLLERS = 20


async def test_a_worker_that_ignores_its_shutdown_is_killed_and_other_models_load_meanwhile(farm: Farm) -> None:
    farm.script("a", stubborn=True, methods=HOLD)
    pid = await farm.ready_pid("a")
    unloading = asyncio.create_task(farm.workers.unload("a", 0.0))
    await farm.until(ModelState.UNLOADING, "a")
    other = await farm.ready_pid("b")
    assert is_alive(other)
    assert not unloading.done(), "the other model loaded while the first refused to go"
    await asyncio.wait_for(unloading, LIMIT_S)
    assert not is_alive(pid)
    assert farm.is_in(ModelState.ACTIVE, "b")


async def test_a_load_that_fails_under_polling_is_tried_as_often_as_its_budget_says(farm: Farm) -> None:
    await farm.workers.stop(0.0)
    workers = farm.workers_with(QUICK)
    await workers.start()
    farm.script("a", load="crash")
    polled = [asyncio.create_task(refusal(workers.acquire("a", LIMIT_S))) for _ in range(POLLERS)]
    told = await asyncio.gather(*polled)
    assert {type(one) for one in told} == {ModelFailed}
    starts = farm.starts("a")
    assert starts == QUICK.budget_crashes
    began_s = time.monotonic()
    again = [await refusal(workers.acquire("a", LIMIT_S)) for _ in range(POLLERS)]
    assert {type(one) for one in again} == {ModelFailed}
    assert time.monotonic() - began_s < LIMIT_S / 5, "a model that has failed says so at once"
    assert farm.starts("a") == starts


async def test_while_a_load_is_paused_pollers_start_nothing(farm: Farm) -> None:
    farm.script("a", crashes=1)
    polled = [asyncio.create_task(farm.workers.acquire("a", LIMIT_S)) for _ in range(POLLERS)]
    leases = await asyncio.gather(*polled)
    assert len({lease.instance.pid for lease in leases}) == 1
    assert farm.starts("a") == 2
    for lease in leases:
        lease.release()


async def test_a_request_within_moments_of_an_unload_has_the_old_worker_or_the_next(farm: Farm) -> None:
    for pause_s in (0.0, 0.001, 0.003):
        await farm.ready_pid("a")
        unloading = asyncio.create_task(farm.workers.unload("a", LIMIT_S))
        await asyncio.sleep(pause_s)
        with await farm.workers.acquire("a", LIMIT_S) as lease:
            assert is_alive(lease.instance.pid)
        await asyncio.wait_for(unloading, LIMIT_S)
        await eventually(lambda: not farm.is_in(ModelState.UNLOADING), LIMIT_S)
