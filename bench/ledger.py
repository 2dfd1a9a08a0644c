"""Models that do not all fit, in random use: is memory ever promised twice, and does anybody at work have to go?

Workers are scripted processes that are said to take some of a made-up budget. Clients ask for models, hold them for a
while and give up; an operator loads, pins and unloads; processes are killed. An observer who does not ask the ledger
looks at which processes live. In the same run the ledger is off (no budget), then careless (models go though they are
in use), then has a seeded defect (it gives memory back before the process is gone): each of these must be seen to fail.
Prints the figures of all of them, with the seed, and exits with 1 where one is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from bench import report
from gateway.errors import (
    MemoryBudget,
    ModelBackingOff,
    ModelFailed,
    ModelLoading,
    ModelUnloading,
    WorkerRestarting,
)
from gateway.keeper import Keeper
from gateway.ledger import Ledger, Resident
from gateway.life_events import Effect, Event, Exited, StopWorker
from gateway.lifecycle import Lifecycle
from gateway.loads import MemoryLimits
from gateway.model_status import ExitCause, Keeping, LoadOptions, ModelState
from gateway.needs import Size
from gateway.supervisor import Supervisor
from tests.gateway.farm import Farm
from tests.support.scripted import is_alive

BUDGET = 100
# Together they are more than twice the budget; the largest fits beside none, the two smallest beside most.
NEEDS = {"a": 60, "b": 55, "c": 45, "d": 20, "e": 15, "f": 100}
WEIGHTS = (8, 8, 6, 6, 6, 1)
POLL_S = 0.005
HANG_S = 90.0  # no call may take longer than this beyond its own deadline
EXPECTED = (MemoryBudget, ModelBackingOff, ModelFailed, ModelLoading, ModelUnloading, WorkerRestarting)


@dataclass
class Played:
    """What was seen.

    Attributes:
        seconds: how long it went on.
        served: requests that had a worker for as long as they wanted it.
        refused: requests that had none, by the name of the error.
        harmed: requests whose worker was sent away under them, though nobody unloaded or killed it.
        starts: workers started.
        over_budget: moments at which living processes took more than the budget.
        over_reserved: moments at which more was reserved than the budget.
        most_bytes: the most that living processes took at once.
        hangs: calls that did not end in their time.
    """

    seconds: float
    served: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    harmed: int = 0
    starts: int = 0
    over_budget: int = 0
    over_reserved: int = 0
    most_bytes: int = 0
    hangs: int = 0

    def is_clean(self) -> bool:
        """Say whether nothing happened that never may."""
        return not (self.harmed or self.over_budget or self.over_reserved or self.hangs)


class Observed(Farm):
    """A farm whose processes are counted by whoever looks at them, not by the ledger."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, tuple(NEEDS))
        self.started: list[Started] = []
        self.played = Played(0.0)
        self.is_over: Callable[[], bool] = lambda: False

    def start_worker(self, model: str, options: LoadOptions, post: Callable[[Event], None]) -> Supervisor:
        """Start one, and look what lives now."""

        def told(event: Event) -> None:
            one.is_over = one.is_over or isinstance(event, Exited)
            post(event)

        one = Started(model)
        one.supervisor = super().start_worker(model, options, told)
        self.started.append(one)
        self.played.starts += 1
        self.look()
        return one.supervisor

    def look(self) -> None:
        """Count what lives; a worker that is about to start counts."""
        self.started = [one for one in self.started if one.lives()]
        taken = sum(NEEDS[one.model] for one in self.started)
        memory = self.workers.memory()
        self.played.most_bytes = max(self.played.most_bytes, taken)
        self.played.over_budget += taken > BUDGET
        self.played.over_reserved += memory.reserved_bytes > memory.budget_bytes


@dataclass
class Started:
    """A worker that was started, and whether its supervisor says that it is over."""

    model: str
    supervisor: Supervisor | None = None
    is_over: bool = False

    def lives(self) -> bool:
        """Say whether its process runs, or is about to."""
        instance = self.supervisor.instance if self.supervisor is not None else None
        return not self.is_over if instance is None else is_alive(instance.pid)


async def estimate(model: str, _options: LoadOptions) -> Size:
    """Return what a model is said to take, after a while."""
    await asyncio.sleep(0.02)
    return Size(NEEDS[model], NEEDS[model])


async def play(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    budget: int = BUDGET,
    is_enough: Callable[[Played], bool] = lambda _: False,
) -> Played:
    """Let clients and an operator at the models for a while, and return what was seen.

    Args:
        folder: an empty one.
        seconds: how long, at most.
        seed: of the dice.
        budget: of the ledger; the observer's is always `BUDGET`.
        is_enough: says when enough was seen.
    """
    farm = Observed(folder)
    limits = MemoryLimits(budget, min_residence_s=0.2, settle_s=0.2)
    workers = farm.workers_with(memory=limits, estimate=estimate)
    await workers.start()
    began_s = time.monotonic()
    farm.is_over = lambda: time.monotonic() > began_s + seconds or is_enough(farm.played)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(_ask(farm, random.Random(seed * 100 + number)))
            group.create_task(_operate(farm, random.Random(seed)))
            group.create_task(_watch(farm))
    finally:
        await workers.stop(0.0)
        farm.sockets.close()
    farm.played.seconds = time.monotonic() - began_s
    return farm.played


async def _watch(farm: Observed) -> None:
    while not farm.is_over():
        farm.look()
        await asyncio.sleep(POLL_S)


async def _ask(farm: Observed, dice: random.Random) -> None:
    while not farm.is_over():
        (model,) = dice.choices(tuple(NEEDS), WEIGHTS)
        deadline_s = dice.choice((0.2, 2.0, 10.0))
        try:
            async with asyncio.timeout(deadline_s + HANG_S):
                await _use(farm, model, deadline_s, dice.choice((0.05, 1.0)))
        except EXPECTED as error:
            farm.played.refused[type(error).__name__] += 1
        except TimeoutError:
            farm.played.hangs += 1
        await asyncio.sleep(dice.uniform(0.0, 0.2))


async def _use(farm: Observed, model: str, deadline_s: float, held_s: float) -> None:
    with await farm.workers.acquire(model, deadline_s) as lease:
        await asyncio.wait([lease.instance.exit], timeout=held_s)
        ended = lease.instance.exit.result() if lease.instance.exit.done() else None
        if ended is None:
            farm.played.served += 1
        elif ended.cause is ExitCause.UNLOADED:
            farm.played.harmed += 1
        else:
            farm.played.refused["killed"] += 1


async def _operate(farm: Observed, dice: random.Random) -> None:
    """Load, pin and unload, whose requests may always finish; and kill a process now and then."""
    while not farm.is_over():
        await asyncio.sleep(dice.uniform(0.0, 0.6))
        model, act = dice.choice(tuple(NEEDS)), dice.random()
        if act < 0.4:
            pinned = dice.random() < 0.1 and model != "f"
            spare = dice.random() < 0.3
            await farm.workers.load(model, None, wait=False, keeping=Keeping(pinned), allow_eviction=not spare)
        elif act < 0.8:
            await farm.workers.unload(model, HANG_S)
        else:
            _kill(farm, dice)


def _kill(farm: Observed, dice: random.Random) -> None:
    held = [one.supervisor.instance for one in farm.started if one.supervisor is not None]
    pids = [instance.pid for instance in held if instance is not None]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(pids), signal.SIGKILL)


@contextlib.contextmanager
def careless() -> Generator[None]:
    """Let models go for others at once though they are in use: eviction without leases."""
    asked = Keeper.resident

    def resident(keeper: Keeper, min_residence_s: float, footprint_bytes: int) -> Resident:
        told = asked(keeper, min_residence_s, footprint_bytes)
        has_stayed = keeper.residence_left_s(min_residence_s) <= 0
        return replace(told, may_go=has_stayed and keeper.life.state is ModelState.ACTIVE)

    with mock.patch.object(Keeper, "resident", resident), mock.patch("gateway.loads.DEFAULT_GRACE_S", 0.0):
        yield


@contextlib.contextmanager
def early() -> Generator[None]:
    """Seed a defect: memory is given back as soon as a worker is to go, not once its process is gone."""
    applied = Lifecycle.apply
    ledgers: list[Ledger] = []
    begun = Ledger.__init__

    def begin(ledger: Ledger, budget_bytes: int) -> None:
        begun(ledger, budget_bytes)
        ledgers.append(ledger)

    def apply(life: Lifecycle, event: Event) -> Effect | None:
        effect = applied(life, event)
        if isinstance(effect, StopWorker):
            ledgers[-1].release(life.model)
        return effect

    with mock.patch.object(Ledger, "__init__", begin), mock.patch.object(Lifecycle, "apply", apply):
        yield


VERDICTS: Mapping[str, Callable[[Played], bool]] = {
    "with the ledger": lambda played: played.is_clean() and played.served > 0,
    "without a budget": lambda played: played.over_budget > 0,
    "careless: models in use may go": lambda played: played.harmed > 0,
    "seeded defect: given back too early": lambda played: played.over_budget > 0,
}


WAYS: Mapping[str, tuple[Callable[[], contextlib.AbstractContextManager[None]], int]] = {
    "with the ledger": (contextlib.nullcontext, BUDGET),
    "without a budget": (contextlib.nullcontext, sys.maxsize),
    "careless: models in use may go": (careless, BUDGET),
    "seeded defect: given back too early": (early, BUDGET),
}


async def play_all(folder: Path, seconds: float, seed: int, contrast_s: float) -> dict[str, Played]:
    """Play with the ledger as it is, for `seconds`, and without each of what makes it right, for `contrast_s`."""
    found: dict[str, Played] = {}
    for number, (name, (way, budget)) in enumerate(WAYS.items()):
        own = folder / str(number)
        own.mkdir()
        with way():
            found[name] = await play(own, contrast_s if number else seconds, seed, budget=budget)
    return found


def main() -> None:
    """Run all of it, print the figures and write `bench/results/ledger.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Ledger: six models, of which two or three fit"))
    print(f"seed {arguments.seed}, {arguments.seconds:g} s with the ledger, {arguments.contrast:g} s for each contrast")
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(play_all(Path(folder), arguments.seconds, arguments.seed, arguments.contrast))
    failed = [name for name, played in found.items() if not VERDICTS[name](played)]
    for name, played in found.items():
        print(f"\n{name}: {'not as it must be' if name in failed else 'as it must be'}\n  {figures(played)}")
    if not arguments.dry_run:
        seen = {name: {**vars(played), "refused": dict(played.refused)} for name, played in found.items()}
        payload = {"options": vars(arguments), "figures": seen}
        path = report.write("ledger", {"benchmark": "ledger", **payload, "failed": failed})
        print("written:", path.relative_to(report.ROOT))
    if failed:
        sys.exit(f"not as it must be: {', '.join(failed)}; seed {arguments.seed}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="with the ledger")
    parser.add_argument("--contrast", type=float, default=30.0, help="seconds of each of the other three")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args(arguments)


def figures(played: Played) -> str:
    """Return what was seen, as text."""
    refused = ", ".join(f"{count} {name}" for name, count in sorted(played.refused.items())) or "none"
    return (
        f"{played.served} served, {played.harmed} harmed, {played.hangs} hung, refused: {refused};\n"
        f"  {played.starts} workers started, at most {played.most_bytes} of {BUDGET} taken at once,"
        f" {played.over_budget} looks above that, {played.over_reserved} with more promised"
    )


if __name__ == "__main__":
    main()
