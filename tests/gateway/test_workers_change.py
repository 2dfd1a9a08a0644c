"""Models come and go while workers run."""

import asyncio
import os
import signal

from gateway.errors import ModelNotFound, ModelUnloading
from gateway.model_status import LoadOptions, ModelState

from .farm import LIMIT_S, Farm, refusal

S = ModelState


async def test_a_model_that_is_new_can_be_loaded_at_once(farm: Farm) -> None:
    farm.folders["c"] = farm.folders["a"]
    assert isinstance(await refusal(farm.workers.acquire("c", 1.0)), ModelNotFound)
    watch = farm.workers.watch()
    farm.workers.put("c", LoadOptions)
    assert (await anext(watch)).state is S.UNLOADED
    with await farm.workers.acquire("c", LIMIT_S) as lease:
        assert lease.model == "c"


async def test_a_model_that_is_removed_is_not_found_and_watchers_are_told(farm: Farm) -> None:
    watch = farm.workers.watch()
    assert farm.workers.remove("a")
    assert (await anext(watch)).is_removed
    assert isinstance(await refusal(farm.workers.acquire("a", 1.0)), ModelNotFound)
    assert farm.workers.remove("a")


async def test_a_loaded_model_is_not_removed(farm: Farm) -> None:
    await farm.ready_pid("a")
    assert not farm.workers.remove("a")
    await farm.workers.unload("a", 0.0)
    assert farm.workers.remove("a")


async def test_a_request_that_waits_in_the_queue_starts_no_worker_of_a_removed_model(farm: Farm) -> None:
    asking = asyncio.create_task(refusal(farm.workers.acquire("a", LIMIT_S)))
    await asyncio.sleep(0)  # its event is in the queue, and not applied yet
    assert farm.workers.remove("a")
    farm.workers.put("a", LoadOptions)
    assert isinstance(await asking, ModelNotFound | ModelUnloading)
    assert farm.starts("a") == 0


async def test_a_pause_after_a_crash_ends_with_the_model(farm: Farm) -> None:
    os.kill(await farm.ready_pid("a"), signal.SIGKILL)
    await farm.until(S.BACKING_OFF, "a")
    waiting = asyncio.create_task(refusal(farm.workers.acquire("a", LIMIT_S)))
    assert farm.workers.remove("a")
    error = await waiting
    assert isinstance(error, ModelNotFound)
    assert error.known == ()  # whoever waited may not know of others
    await farm.ready_pid("b")  # longer than the pause was
    assert farm.starts("a") == 1


async def test_an_unload_that_meets_a_load_about_to_begin_waits_for_its_process(farm: Farm) -> None:
    asking = asyncio.create_task(farm.workers.load("a", None, wait=False))
    await asyncio.sleep(0)  # its event is in the queue, and not applied yet
    await farm.workers.unload("a", 0.0)
    assert farm.workers.state("a").state is S.UNLOADED
    assert farm.workers.state("a").worker is None
    await asking
