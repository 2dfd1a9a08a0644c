"""Loads wait for memory and others go for them; nobody who is served is harmed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from gateway.back_off import BackOff, BackOffLimits
from gateway.errors import MemoryBudget, MemoryPressure, ModelExceedsMemory, ModelUnloading
from gateway.keeper import Keeper
from gateway.lifecycle import Lifecycle
from gateway.loads import Hooks, Loads, MemoryLimits, Terms
from gateway.memory import MachineMemory
from gateway.model_status import ExitCause, Keeping, Lease, LoadOptions, PressureLevel
from gateway.needs import Size
from tests.gateway.farm import LIMIT_S, Farm, S, refusal
from tests.support.scripted import is_alive
from tests.support.waiting import eventually

BUDGET = 100
TOO_LARGE = LoadOptions(max_batch_rows=99)


async def needed(model: str, options: LoadOptions) -> Size:
    """Return that any two of a, b, c do not fit together, that d fits beside each, and e beside none."""
    if options == TOO_LARGE:
        return Size(300, 101)
    return {"d": Size(20, 20), "e": Size(300, 100)}.get(model, Size(60, 30))


class Tight(Farm):
    """A farm whose models do not all fit."""

    async def begin(
        self,
        min_residence_s: float = 0.0,
        settle_s: float = 0.0,
        needs: Callable[[str, LoadOptions], Awaitable[Size]] = needed,
        **keeping: Keeping,
    ) -> None:
        await self.workers.stop(0.0)
        limits = MemoryLimits(BUDGET, min_residence_s=min_residence_s, settle_s=settle_s)
        workers = self.workers_with(memory=limits, estimate=needs, keeping=lambda name: keeping.get(name, Keeping()))
        await workers.start()

    def reserved(self) -> int:
        return self.workers.memory().reserved_bytes

    async def ask(self, model: str, timeout_s: float = LIMIT_S) -> int:
        """Have a short request answered, and return the process that did."""
        with await self.workers.acquire(model, timeout_s) as lease:
            await asyncio.sleep(0)
            return lease.instance.pid


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Tight]:
    farm = Tight(tmp_path, ("a", "b", "c", "d", "e"))
    await farm.begin()
    yield farm
    await farm.workers.stop(0.0)
    farm.sockets.close()


async def test_an_idle_model_goes_for_another_and_its_process_first(tight: Tight) -> None:
    first = await tight.ask("a")
    await eventually(lambda: tight.reserved() == 60)
    second = await tight.ask("b")
    assert not is_alive(first)
    assert is_alive(second)
    assert (tight.is_in(S.UNLOADED, "a"), tight.reserved()) == (True, 60)


async def test_requests_to_a_resident_model_are_all_served_while_another_waits(tight: Tight) -> None:
    lease = await tight.workers.acquire("a", LIMIT_S)
    waiting = asyncio.create_task(tight.workers.acquire("b", LIMIT_S))
    await eventually(lambda: tight.workers.state("b").waiting_for.endswith("may not go now"))
    assert tight.is_in(S.QUEUED, "b")
    for _ in range(100):
        assert await tight.ask("a") == lease.instance.pid
    assert not waiting.done()
    lease.release()
    with await waiting:
        assert (tight.starts("a"), tight.starts("b")) == (1, 1)
    assert (await lease.instance.exit).cause is ExitCause.UNLOADED


async def test_a_request_that_finds_no_memory_in_its_time_is_told_what_it_waited_for(tight: Tight) -> None:
    with await tight.workers.acquire("a", LIMIT_S):
        await eventually(lambda: tight.reserved() == 60)
        error = await refusal(tight.workers.acquire("b", 0.3))
        assert isinstance(error, MemoryBudget)
        assert (error.needed_bytes, error.budget_bytes) == (60, BUDGET)
        assert "of which" in error.waiting_for
        await tight.until(S.UNLOADED, "b")  # nobody waits for it any more
        assert tight.starts("b") == 0


async def test_a_model_that_can_never_fit_is_refused_at_once_and_nobody_goes_for_it(tight: Tight) -> None:
    await tight.ask("a")
    error = await refusal(tight.workers.load("b", TOO_LARGE, wait=True))
    assert isinstance(error, ModelExceedsMemory)
    assert error.facts == {"needed_bytes": "101", "budget_bytes": "100"}
    assert (tight.is_in(S.FAILED, "b"), tight.is_in(S.ACTIVE, "a")) == (True, True)
    await tight.workers.unload("b", 0.0)
    await tight.ask("b")


async def test_a_model_that_fits_only_with_few_requests_is_loaded_alone(tight: Tight) -> None:
    await tight.ask("d")
    await tight.ask("e")
    assert (tight.is_in(S.UNLOADED, "d"), tight.reserved()) == (True, BUDGET)


async def test_a_pinned_model_stays_and_one_that_is_let_go_of_later_goes(tight: Tight) -> None:
    await tight.workers.load("a", None, wait=True, keeping=Keeping(pinned=True))
    assert tight.workers.state("a").pinned
    waiting = asyncio.create_task(tight.ask("b"))
    await eventually(lambda: tight.workers.state("b").waiting_for.endswith("may not go now"))
    assert await tight.ask("d")  # it fits beside
    await tight.workers.load("a", None, wait=True, keeping=Keeping(pinned=False))
    await waiting
    assert tight.is_in(S.UNLOADED, "a")


async def test_what_is_configured_pins_until_a_load_says_otherwise(tight: Tight) -> None:
    await tight.begin(a=Keeping(pinned=True))
    await tight.ask("a")
    assert isinstance(await refusal(tight.workers.acquire("b", 0.3)), MemoryBudget)
    await tight.workers.load("a", None, wait=True, keeping=Keeping(pinned=False))
    await tight.ask("b")


async def test_a_load_may_spare_the_others_and_a_request_for_it_does_not(tight: Tight) -> None:
    first = await tight.ask("a")
    await tight.workers.load("b", None, wait=False, allow_eviction=False)
    await eventually(lambda: tight.workers.state("b").waiting_for.endswith("sends no other away"))
    assert await tight.ask("a") == first
    await tight.ask("b")
    assert not is_alive(first)


async def test_a_load_that_was_ordered_begins_once_there_is_room_though_nobody_waits(tight: Tight) -> None:
    lease = await tight.workers.acquire("a", LIMIT_S)
    assert (await tight.workers.load("b", None, wait=False)).state is S.QUEUED
    lease.release()
    await tight.until(S.ACTIVE, "b")


async def test_an_unload_ends_the_wait_of_an_order(tight: Tight) -> None:
    with await tight.workers.acquire("a", LIMIT_S):
        waiting = asyncio.create_task(tight.workers.load("b", None, wait=True))
        await tight.until(S.QUEUED, "b")
        assert await tight.workers.unload("b", 0.0) == 0
        assert isinstance(await refusal(waiting), ModelUnloading)


async def test_models_that_do_not_fit_together_take_turns_and_each_serves_before_it_goes(tight: Tight) -> None:
    served: list[str] = []

    async def client(model: str) -> None:
        for _ in range(3):
            await tight.ask(model, 60.0)
            served.append(model)

    await asyncio.gather(*(client(model) for model in "abc"))
    assert sorted(served) == sorted("abc" * 3)
    assert sum(tight.starts(model) for model in "abc") <= len(served)
    assert tight.reserved() <= BUDGET


@pytest.mark.parametrize(("min_residence_s", "goes"), [(60.0, False), (0.3, True)])
async def test_a_model_stays_for_its_least_time_once_it_is_ready(
    tight: Tight, min_residence_s: float, goes: bool
) -> None:
    await tight.begin(min_residence_s)
    await tight.ask("a")
    waiting = asyncio.create_task(tight.workers.acquire("b", LIMIT_S if goes else 0.6))
    await eventually(lambda: tight.workers.state("b").waiting_for.endswith("may not go now"))
    assert tight.is_in(S.ACTIVE, "a")
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, Lease if goes else MemoryBudget)
    assert tight.is_in(S.ACTIVE, "a") is not goes


async def test_a_worker_that_crashed_comes_back_without_sending_others_away(tight: Tight) -> None:
    with await tight.workers.acquire("a", LIMIT_S) as lease:
        waiting = asyncio.create_task(tight.ask("b"))
        await tight.until(S.QUEUED, "b")
        tight.script("a", load="crash")
        await tight.workers.unload("a", 0.0)
        assert lease.instance.exit.done()
    second = await waiting
    await tight.workers.load("a", None, wait=False, allow_eviction=False)
    assert await tight.ask("b") == second


async def test_what_a_worker_took_the_last_time_is_reserved_the_next(tight: Tight) -> None:
    tight.footprint_bytes = 85
    await tight.ask("a")
    await eventually(lambda: tight.reserved() == 85)
    tight.footprint_bytes = 0
    await tight.workers.unload("a", 0.0)
    assert tight.reserved() == 0
    await tight.ask("d")
    await tight.ask("a")
    assert tight.workers.state("a").reserved_bytes == 85
    assert tight.is_in(S.UNLOADED, "d")


async def test_a_load_waits_until_the_memory_of_one_that_went_shows(tight: Tight) -> None:
    tight.machine, tight.footprint_bytes = MachineMemory(200, 100), 50
    await tight.begin(settle_s=60.0)
    await tight.ask("a")
    await eventually(lambda: tight.reserved() == 60)
    tight.machine = MachineMemory(200, 50)
    waiting = asyncio.create_task(tight.ask("b"))
    await eventually(lambda: tight.workers.state("b").waiting_for == "memory that models give back")
    await tight.until(S.UNLOADED, "a")
    assert isinstance(await refusal(tight.workers.acquire("b", 0.2)), MemoryBudget)
    tight.machine = MachineMemory(200, 60)
    await waiting


async def test_a_load_does_not_wait_for_ever_for_memory_that_others_took(tight: Tight) -> None:
    tight.machine, tight.footprint_bytes = MachineMemory(200, 100), 50
    await tight.begin(settle_s=0.6)
    await tight.ask("a")
    await eventually(lambda: tight.reserved() == 60)
    tight.machine = MachineMemory(200, 50)
    began = time.monotonic()
    await tight.ask("b")
    assert time.monotonic() - began > 0.5


async def test_no_load_begins_above_the_soft_mark_and_residents_serve_on(tight: Tight) -> None:
    first = await tight.ask("d")
    tight.machine = MachineMemory(1000, 140)
    await eventually(lambda: tight.workers.memory().pressure is PressureLevel.SOFT_LIMIT)
    error = await refusal(tight.workers.acquire("a", 0.3))
    assert isinstance(error, MemoryBudget)
    assert error.waiting_for == "the memory of the machine to be less full"
    assert await tight.ask("d") == first
    waiting = asyncio.create_task(tight.ask("a"))
    tight.machine = MachineMemory(1000, 190)  # within the slack
    await refusal(tight.workers.acquire("b", 0.2))
    assert not waiting.done()
    tight.machine = MachineMemory(1000, 300)
    await waiting


async def test_above_the_hard_mark_requests_are_refused_and_the_newest_load_goes_and_comes_back(tight: Tight) -> None:
    old = await tight.workers.acquire("d", LIMIT_S)
    new = await tight.workers.acquire("a", LIMIT_S)
    tight.machine = MachineMemory(1000, 40)
    assert (await new.instance.exit).cause is ExitCause.UNLOADED
    error = await refusal(tight.workers.acquire("d", LIMIT_S))
    assert isinstance(error, MemoryPressure)
    assert error.used_percent == 96
    assert not old.instance.exit.done()
    tight.machine = MachineMemory(1000, 500)
    await eventually(lambda: tight.workers.memory().pressure is PressureLevel.NORMAL)
    await tight.ask("a")
    old.release()
    assert tight.starts("d") == 1


async def test_a_model_whose_size_is_not_known_yet_does_not_go_for_one_that_may_fit_beside_it(tight: Tight) -> None:
    may_tell = asyncio.Event()

    async def slow(model: str, options: LoadOptions) -> Size:
        if model == "a":
            await may_tell.wait()
        return await needed(model, options)

    await tight.begin(needs=slow)
    first = await tight.ask("a")
    waiting = asyncio.create_task(tight.ask("d"))
    await eventually(lambda: tight.workers.state("d").waiting_for.endswith("may not go now"))
    assert tight.reserved() == BUDGET
    may_tell.set()
    await waiting
    assert (await tight.ask("a"), tight.reserved()) == (first, 80)


async def test_memory_of_a_process_that_cannot_be_ended_is_not_given_to_another() -> None:
    posted: list[Callable[[], None]] = []
    hooks = Hooks(lambda *_: None, posted.append, lambda _: None, lambda: None, lambda: 0.0)
    life = Lifecycle("a", BackOff(BackOffLimits(), random.Random(1)), lambda: 0.0, lambda *_: None)
    keeper = Keeper(life, lambda _: None, lambda: 0.0)
    terms = Terms(memory=MemoryLimits(BUDGET))
    loads = Loads({"a": keeper}, terms, lambda _: None, hooks, structlog.wrap_logger(None, processors=[]))
    loads.claim(keeper)
    loads.ledger.size("a", 60)
    loads.ledger.grant("a")
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    left: Any = SimpleNamespace(left_process=end, instance=None, instance_id="i1")
    loads.ended(keeper, left)
    assert (loads.ledger.reserved_bytes, keeper.reserved_bytes) == (60, 0)
    end.set_result(None)
    await asyncio.sleep(0)
    for work in posted:
        work()
    assert loads.ledger.reserved_bytes == 0
