"""Workers are started, shared, watched and replaced."""

import asyncio
import os
import signal
import time

import pytest

from gateway import workers as workers_module
from gateway.back_off import BackOffLimits
from gateway.errors import (
    CheckpointRejected,
    ModelBackingOff,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    WorkerRestarting,
)
from gateway.model_status import ExitCause, Lease, LoadOptions, ModelState
from gateway.vitals import VitalLimits
from tests.gateway.farm import LIMIT_S, MODELS, PATIENT, Farm, S, footprint, refusal
from tests.support.scarcity import descriptors_left
from tests.support.scripted import is_alive
from tests.support.waiting import eventually


async def test_the_first_request_loads_the_model(farm: Farm) -> None:
    assert farm.is_in(S.UNLOADED)
    lease = await farm.workers.acquire("a", LIMIT_S)
    status = farm.workers.state("a")
    assert (status.state, lease.model) == (S.ACTIVE, "a")
    assert status.worker is not None
    assert status.worker.pid == lease.instance.pid
    assert status.facts is not None
    assert status.facts.revision == "scripted"
    await eventually(lambda: footprint(farm.workers.state("a")) == 1 << 20)


async def test_an_unknown_model_is_not_found(farm: Farm) -> None:
    assert isinstance(await refusal(farm.workers.acquire("x", 1.0)), ModelNotFound)
    assert farm.workers.state("x").is_removed


async def test_requests_that_come_together_share_one_load(farm: Farm) -> None:
    leases = await asyncio.gather(*(farm.workers.acquire("a", LIMIT_S) for _ in range(20)))
    assert len({lease.instance.pid for lease in leases}) == 1
    assert farm.starts() == 1


async def test_a_deadline_that_a_load_cannot_meet_is_told_so_in_time(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "ANSWER_MARGIN_S", 4.5)
    farm.script(reports=1, load="stuck")
    began = time.monotonic()
    error = await refusal(farm.workers.acquire("a", 5.0))
    assert time.monotonic() - began < 5.0
    assert isinstance(error, ModelLoading)
    await eventually(lambda: farm.workers.state("a").progress is not None)
    error = await refusal(farm.workers.acquire("a", 5.0))
    assert isinstance(error, ModelLoading)
    assert (error.progress.phase, error.progress.bytes_done) == ("weights", 1)


async def test_a_request_that_gives_up_does_not_abort_the_load(farm: Farm) -> None:
    farm.script(reports=10, pause_s=0.05)
    waiting = asyncio.create_task(farm.workers.acquire("a", LIMIT_S))
    await farm.until(S.LOADING)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await farm.until(S.ACTIVE)
    assert farm.starts() == 1


async def test_a_killed_worker_is_told_to_each_lease_and_started_again(farm: Farm) -> None:
    leases = [await farm.workers.acquire("a", LIMIT_S) for _ in range(3)]
    killed = leases[0].instance
    os.kill(killed.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        ended = await asyncio.gather(*(lease.instance.exit for lease in leases))
    assert {(one.cause, one.signal) for one in ended} == {(ExitCause.DIED, signal.SIGKILL)}
    await farm.until(S.BACKING_OFF)
    await farm.until(S.ACTIVE)
    status = farm.workers.state("a")
    assert status.worker is not None
    assert (status.worker.restart_count, status.worker.last_exit) == (1, "SIGKILL")
    assert status.worker.instance_id != killed.instance_id


async def test_a_dead_worker_is_not_handed_out(farm: Farm) -> None:
    lease = await farm.workers.acquire("a", LIMIT_S)
    os.kill(lease.instance.pid, signal.SIGKILL)
    await lease.instance.exit
    other = await farm.workers.acquire("a", LIMIT_S)
    assert other.instance.instance_id != lease.instance.instance_id


async def test_the_death_of_one_worker_is_nothing_to_another(farm: Farm) -> None:
    other = await farm.workers.acquire("b", LIMIT_S)
    os.kill(await farm.ready_pid("a"), signal.SIGKILL)
    await farm.until(S.BACKING_OFF)
    await farm.until(S.ACTIVE)
    assert not other.instance.exit.done()
    assert farm.starts("b") == 1


async def test_five_crashes_on_load_leave_the_model_failed_with_its_last_words(farm: Farm) -> None:
    farm.script(load="crash", last_words="RuntimeError: no such kernel in /opt/lib/x.so")
    error = await refusal(farm.workers.acquire("a", 30.0))
    assert isinstance(error, ModelFailed)
    assert error.last_exit == "exit code 1: RuntimeError: no such kernel in x.so"
    assert farm.starts() == 5
    assert isinstance(await refusal(farm.workers.acquire("a", 30.0)), ModelFailed)
    assert farm.starts() == 5


async def test_a_machine_without_descriptors_costs_pauses_until_it_has_some(farm: Farm) -> None:
    with descriptors_left(3):
        await farm.workers.load("a", None, wait=False)
        await farm.until(S.BACKING_OFF)
    with await farm.workers.acquire("a", LIMIT_S):
        assert farm.starts() == 1


async def test_a_request_waits_through_the_pauses_of_a_model_that_then_loads(farm: Farm) -> None:
    farm.script(crashes=2)
    with await farm.workers.acquire("a", LIMIT_S):
        assert farm.starts() == 3


async def test_a_pause_longer_than_the_deadline_is_told_at_once(farm: Farm) -> None:
    farm.script(load="crash")
    await farm.workers.stop(0.0)
    workers = farm.workers_with(BackOffLimits(first_s=30.0, jitter=0.0))
    await workers.start()
    await workers.load("a", None, wait=False)
    await farm.until(S.BACKING_OFF)
    began = time.monotonic()
    error = await refusal(workers.acquire("a", 20.0))
    assert time.monotonic() - began < LIMIT_S
    assert isinstance(error, ModelBackingOff)
    assert error.attempt == 1
    assert 20.0 < error.retry_after_s <= 30.0
    assert isinstance(workers.state("a").failure, ModelBackingOff)


async def test_a_load_ordered_for_a_failed_model_tries_again(farm: Farm) -> None:
    farm.script(load="crash")
    await refusal(farm.workers.load("a", None, wait=True))
    farm.script()
    status = await farm.workers.load("a", None, wait=True)
    assert status.state is S.ACTIVE
    assert status.failure is None


async def test_a_rejected_checkpoint_is_not_tried_again_until_it_changes(farm: Farm) -> None:
    farm.script(load="fail", failure={"message": "config.json has no hidden_size."})
    error = await refusal(farm.workers.acquire("a", LIMIT_S))
    assert isinstance(error, CheckpointRejected)
    assert error.problem == "config.json has no hidden_size."
    assert await refusal(farm.workers.acquire("a", LIMIT_S)) is error
    assert farm.starts() == 1
    farm.script()
    with await farm.workers.acquire("a", LIMIT_S):
        assert farm.starts() == 2


async def test_a_load_that_need_not_be_awaited_returns_at_once(farm: Farm) -> None:
    farm.script(load="stuck")
    assert (await farm.workers.load("a", None, wait=False)).state is S.LOADING


async def test_options_reach_the_worker_and_its_successor(farm: Farm) -> None:
    options = LoadOptions(context_tokens=512)
    status = await farm.workers.load("a", options, wait=True)
    assert status.options == options
    os.kill(await farm.ready_pid(), signal.SIGKILL)
    await farm.until(S.BACKING_OFF)
    await farm.until(S.ACTIVE)
    assert farm.told_options == [options, options]


async def test_other_options_replace_the_worker(farm: Farm) -> None:
    await farm.workers.load("a", LoadOptions(context_tokens=512), wait=True)
    first = await farm.ready_pid()
    await farm.workers.load("a", LoadOptions(context_tokens=1024), wait=True)
    assert not is_alive(first)
    assert farm.workers.state("a").options == LoadOptions(context_tokens=1024)


async def test_a_suspect_worker_gets_no_new_work(farm: Farm) -> None:
    farm.vital_limits = VitalLimits(heartbeat_s=0.1, suspect_after=3, lost_after=1000)
    pid = await farm.ready_pid()
    os.kill(pid, signal.SIGSTOP)
    await farm.until(S.DEGRADED)
    assert isinstance(await refusal(farm.workers.acquire("a", 0.2)), WorkerRestarting)
    waiting = asyncio.create_task(farm.workers.acquire("a", LIMIT_S))
    os.kill(pid, signal.SIGCONT)
    assert (await waiting).instance.pid == pid


async def test_a_stalled_worker_is_replaced(farm: Farm) -> None:
    farm.vital_limits = VitalLimits(heartbeat_s=0.05, suspect_after=3, lost_after=10)
    lease = await farm.workers.acquire("a", LIMIT_S)
    os.kill(lease.instance.pid, signal.SIGSTOP)
    assert (await lease.instance.exit).cause is ExitCause.STALLED
    farm.vital_limits = PATIENT
    with await farm.workers.acquire("a", LIMIT_S) as other:
        assert other.instance.pid != lease.instance.pid
    assert not is_alive(lease.instance.pid)


async def test_a_worker_that_takes_its_leave_unasked_gets_no_new_work_and_is_replaced(farm: Farm) -> None:
    farm.script(lingers=True)
    lease = await farm.workers.acquire("a", LIMIT_S)
    os.kill(lease.instance.pid, signal.SIGTERM)
    await farm.until(S.DRAINING)
    waiting = asyncio.create_task(farm.workers.acquire("a", LIMIT_S))
    await asyncio.wait([waiting, lease.instance.exit], timeout=0.3)
    assert not waiting.done()
    assert not lease.instance.exit.done()
    lease.release()
    with await waiting as other:
        assert other.instance.pid != lease.instance.pid
    assert not is_alive(lease.instance.pid)
    assert farm.starts() == 2


async def test_a_worker_that_takes_its_leave_unasked_is_replaced_though_nobody_asks(farm: Farm) -> None:
    pid = await farm.ready_pid()
    farm.script(lingers=True)
    os.kill(pid, signal.SIGTERM)
    await eventually(lambda: farm.starts() == 2, LIMIT_S)
    await farm.until(S.ACTIVE)


async def test_an_unload_in_the_midst_of_a_workers_leave_is_not_followed_by_another_worker(farm: Farm) -> None:
    farm.script(lingers=True)
    lease = await farm.workers.acquire("a", LIMIT_S)
    os.kill(lease.instance.pid, signal.SIGTERM)
    await farm.until(S.DRAINING)
    await farm.workers.unload("a", 0.0)
    lease.release()
    assert farm.is_in(S.UNLOADED)
    assert farm.starts() == 1


async def test_two_models_that_crash_side_by_side_both_spend_their_budgets(farm: Farm) -> None:
    farm.script("a", load="crash")
    farm.script("b", load="crash")
    both = await asyncio.gather(*(refusal(farm.workers.acquire(model, 30.0)) for model in MODELS))
    assert [type(error) for error in both] == [ModelFailed, ModelFailed]
    starts = sorted(farm.starts(model) for model in MODELS)
    assert starts == [5, 6]  # what they have in common is the first crash


async def test_a_watch_gives_changes_and_merges_those_not_read(farm: Farm) -> None:
    lazy, keen = farm.workers.watch(), farm.workers.watch()
    states: set[ModelState] = set()

    async def read() -> None:
        async for status in keen:
            states.add(status.state)

    reading = asyncio.create_task(read())
    await farm.ready_pid()
    await farm.workers.unload("a", 1.0)
    await eventually(lambda: S.UNLOADED in states)
    reading.cancel()
    assert {S.LOADING, S.ACTIVE, S.UNLOADED} <= states
    assert (await anext(lazy)).state is S.UNLOADED
    more = asyncio.create_task(anext(lazy))
    await asyncio.sleep(0)
    assert not more.done()
    more.cancel()


async def test_a_lease_is_released_once(farm: Farm) -> None:
    first = await farm.workers.acquire("a", LIMIT_S)
    second: Lease = await farm.workers.acquire("a", LIMIT_S)
    first.release()
    first.release()
    unloading = asyncio.create_task(farm.workers.unload("a", 60.0))
    await farm.until(S.DRAINING)
    second.release()
    await unloading
