import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import workers as workers_module
from gateway.back_off import BackOffLimits
from gateway.errors import (
    CheckpointRejected,
    GatewayError,
    ModelBackingOff,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloading,
    ServerDraining,
    WorkerRestarting,
)
from gateway.lifecycle import Event
from gateway.model_status import ExitCause, Lease, LoadOptions, ModelState, ModelStatus
from gateway.sockets import SocketFolder
from gateway.stop_ladder import StopLimits
from gateway.supervisor import Launch, Supervisor
from gateway.vitals import VitalLimits
from gateway.workers import Chances, Workers
from tests.support.scarcity import descriptors_left
from tests.support.scripted import STREAM_GENERATE, events_in, fake_worker_command, is_alive, write_script
from tests.support.waiting import eventually

S = ModelState
MODELS = ("a", "b")
PATIENT = VitalLimits(heartbeat_s=0.05, suspect_after=1000, lost_after=1000)
QUICK_STOP = StopLimits(shutdown_s=1.0, dump_s=0.1, terminate_s=0.3, interrupt_s=0.3)
QUICK = BackOffLimits(first_s=0.05, longest_s=0.1, jitter=0.0)
HOLD = {STREAM_GENERATE: [{"send": "00"}, {"hang": True}]}
LIMIT_S = 10.0


class Farm:
    """Workers of two models, each with a script in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folders = {model: folder / model for model in MODELS}
        self.sockets = SocketFolder()
        self.vital_limits = PATIENT
        self.stop_limits = QUICK_STOP
        self.told_options: list[LoadOptions] = []
        for path in self.folders.values():
            path.mkdir()
            write_script(path)
        self.workers = self.workers_with(QUICK)

    def workers_with(self, limits: BackOffLimits) -> Workers:
        log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        self.workers = Workers(MODELS, self.start_worker, self.stamp, limits, log, Chances(dice=random.Random(1)))
        return self.workers

    def start_worker(self, model: str, options: LoadOptions, post: Callable[[Event], None]) -> Supervisor:
        self.told_options.append(options)
        settings = {"model": model, "checkpoint": str(self.folders[model] / "script.json")}
        launch = Launch(model, fake_worker_command(), settings, self.sockets, self.vital_limits, self.stop_limits)
        return Supervisor(launch, post, structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()]))

    def stamp(self, model: str) -> object:
        return (self.folders[model] / "script.json").stat().st_mtime_ns

    def script(self, model: str = "a", **script: Any) -> None:
        write_script(self.folders[model], **script)

    def starts(self, model: str = "a") -> int:
        return len(events_in(self.folders[model], "started"))

    def is_in(self, state: ModelState, model: str = "a") -> bool:
        return self.workers.state(model).state is state

    async def until(self, state: ModelState, model: str = "a") -> None:
        await eventually(lambda: self.is_in(state, model), LIMIT_S)

    async def ready_pid(self, model: str = "a") -> int:
        with await self.workers.acquire(model, LIMIT_S) as lease:
            return lease.instance.pid


@pytest.fixture
async def farm(tmp_path: Path) -> AsyncIterator[Farm]:
    farm = Farm(tmp_path)
    await farm.workers.start()
    yield farm
    await farm.workers.stop(0.0)
    farm.sockets.close()


def footprint(status: ModelStatus) -> int:
    return status.stats.memory.footprint_bytes if status.stats is not None else 0


async def refusal(work: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value


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
    with pytest.raises(ModelNotFound):
        farm.workers.state("x")


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
        try:
            with await farm.workers.acquire("a", LIMIT_S) as lease:
                await asyncio.wait([lease.instance.exit], timeout=dice.random() / 10)
        except (ModelUnloading, ModelLoading):
            pass

    async def unload() -> None:
        await asyncio.sleep(dice.random())
        await farm.workers.unload("a", dice.choice([0.0, 0.05, 1.0]))

    await asyncio.gather(*(request() for _ in range(60)), *(unload() for _ in range(6)))


async def test_a_load_that_is_unloaded_tells_those_who_wait_for_it(farm: Farm) -> None:
    farm.script(load="stuck")
    waiting = asyncio.create_task(farm.workers.acquire("a", LIMIT_S))
    await farm.until(S.LOADING)
    await farm.workers.unload("a", 0.0)
    assert isinstance(await refusal(waiting), ModelUnloading)


async def test_an_unload_ends_a_pause(farm: Farm) -> None:
    farm.script(load="crash")
    await farm.workers.stop(0.0)
    workers = farm.workers_with(BackOffLimits(first_s=30.0))
    await workers.start()
    await workers.load("a", None, wait=False)
    await farm.until(S.BACKING_OFF)
    assert await workers.unload("a", 0.0) == 0
    assert farm.is_in(S.UNLOADED)


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
