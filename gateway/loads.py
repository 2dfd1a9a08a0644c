"""Which loads wait for memory, and what is done so that they can begin; and which models go because of memory or time.

Only the task of `gateway.workers` calls what changes something here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from structlog.typing import FilteringBoundLogger

from gateway.back_off import BackOffLimits
from gateway.errors import GatewayError, MemoryBudget, MemoryPressure, exceeds_memory
from gateway.keeper import LEAVING, Keeper
from gateway.ledger import Conditions, Ledger, Resident
from gateway.life_events import Event, Forsaken, Granted, Refused, Retired
from gateway.lifecycle import DEFAULT_GRACE_S
from gateway.model_status import Keeping, LoadOptions, MemoryStatus, ModelState, PressureLevel
from gateway.needs import Estimate, Need, Needs, Stamp, nothing_needed
from gateway.onlooker import Nobody, Onlooker
from gateway.pressure import Marks, Pressure, Reading
from gateway.supervisor import Supervisor

S = ModelState
RETURNED_SHARE = 0.9  # of what a worker had, must show as free memory before the next load begins
ORDER_LIMIT_S = 3600.0  # How long a load waits for memory that nobody waits for.
SHEDDABLE = frozenset({S.LOADING, S.ACTIVE, S.DEGRADED})


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What is granted to models, and when.

    Attributes:
        budget_bytes: what they may take together.
        marks: where the machine begins to be too full.
        min_residence_s: how long a model stays at least once it is ready, before it goes for another.
        settle_s: how long a load waits at most for the memory of a worker that is gone to show as free.
    """

    budget_bytes: int = sys.maxsize
    marks: Marks = field(default_factory=Marks)
    min_residence_s: float = 5.0
    settle_s: float = 5.0


def nothing_kept(_model: str) -> Keeping:
    """Configure nothing of how long a model stays."""
    return Keeping()


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms models are loaded.

    Attributes:
        back_off: pauses and budget after crashes.
        memory: what is granted.
        estimate: tells what a load takes at most.
        keeping: tells how long a model stays where LoadModel chose nothing.
        onlooker: is told of what happens to models.
    """

    back_off: BackOffLimits = field(default_factory=BackOffLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    estimate: Estimate = nothing_needed
    keeping: Callable[[str], Keeping] = nothing_kept
    onlooker: Onlooker = field(default_factory=Nobody)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the keeper of all workers does for its loads.

    Attributes:
        apply: has an event happen to a model, at once.
        post: has something done later, by the one task that changes states.
        tell: has watchers see that a model changed.
        hurry: has memory measured soon.
        now: monotonic time in seconds.
    """

    apply: Callable[[Keeper, Event], None]
    post: Callable[[Callable[[], None]], None]
    tell: Callable[[str], None]
    hurry: Callable[[], None]
    now: Callable[[], float]


class Loads:
    """The loads of all models.

    Args:
        keepers: of all models, by name; others may come and go.
        terms: on which they are loaded.
        stamp: tells whether a checkpoint changed.
        hooks: what is done for them.
        log: takes what is done for memory.
    """

    def __init__(
        self, keepers: Mapping[str, Keeper], terms: Terms, stamp: Stamp, hooks: Hooks, log: FilteringBoundLogger
    ) -> None:
        self.ledger = Ledger(terms.memory.budget_bytes)
        self._pressure = Pressure(terms.memory.marks, terms.memory.budget_bytes)
        self._keepers = keepers
        self._limits = terms.memory
        self._onlooker = terms.onlooker
        self._needs = Needs(terms.estimate, stamp, log)
        self._hooks = hooks
        self._log = log
        self._unsized: set[str] = set()  # those that have all that was left, until it is known what they take
        self._timer: asyncio.TimerHandle | None = None
        self._settles_until_s = self._last_exit_s = float("-inf")
        self._expected_free_bytes = 0
        self._shed_for: Reading | None = None

    def status(self) -> MemoryStatus:
        """Return what models have together."""
        return MemoryStatus(self.ledger.budget_bytes, self.ledger.reserved_bytes, self._pressure.level)

    def check_pressure(self) -> None:
        """Refuse a request where memory is as good as full.

        Raises:
            MemoryPressure: it is.
        """
        if self._pressure.level is PressureLevel.HARD_LIMIT:
            raise MemoryPressure(round(self._pressure.share * 100))

    def refusal(self, keeper: Keeper) -> GatewayError:
        """Return why a request cannot have a model now."""
        needed = self.ledger.needed_bytes(keeper.model)
        if keeper.life.state is not S.QUEUED or needed is None:
            return keeper.refusal()
        return MemoryBudget(keeper.model, keeper.waiting_for, needed, self.ledger.budget_bytes)

    def wanted(self, keeper: Keeper, *, may_evict: bool) -> None:
        """Note whether others may go for a model that someone needs."""
        keeper.may_evict = may_evict or (keeper.life.state is S.QUEUED and keeper.may_evict)
        if keeper.may_evict:
            self.ledger.allow_eviction(keeper.model)

    def claim(self, keeper: Keeper) -> None:
        """Have a load wait for memory; where it follows a crash and nobody waits for it, others do not go for it."""
        if not keeper.is_awaited:
            keeper.ordered_until_s = self._hooks.now() + ORDER_LIMIT_S
            keeper.may_evict = False
        self.ledger.join(keeper.model, may_evict=keeper.may_evict)

    def let_go(self, keeper: Keeper) -> None:
        """Go on where nobody uses a model any more."""
        self.mind(keeper)
        if self.ledger.line:
            self._hooks.post(_nothing)

    def close(self) -> None:
        """Do nothing any more by oneself."""
        self._needs.close()
        if self._timer is not None:
            self._timer.cancel()
        for keeper in self._keepers.values():
            keeper.cancel_idle_timer()

    def ready(self, keeper: Keeper) -> None:
        """Begin the stay of a model, and find out what it takes where it was loaded without that."""
        keeper.used_s = self._hooks.now()
        if keeper.model in self._unsized:
            self._ask(keeper)

    def ended(self, keeper: Keeper, supervisor: Supervisor) -> None:
        """Give back what was reserved for a worker whose process is gone; of one that is not, once it is."""
        left = supervisor.left_process
        if left is not None:
            holder = f"{keeper.model} {supervisor.instance_id}"
            self.ledger.strand(keeper.model, holder)
            left.add_done_callback(lambda _: self._hooks.post(partial(self.ledger.release, holder)))
        self.ledger.release(keeper.model)
        self._unsized.discard(keeper.model)
        keeper.reserved_bytes = 0
        if keeper.peak_bytes:
            self._needs.note(keeper.model, keeper.stamp, keeper.loaded_options, keeper.peak_bytes)
            keeper.peak_bytes = 0
        self._expect_back(supervisor)

    def measured(self, reading: Reading) -> None:
        """Take what was measured."""
        is_as_promised = True
        for keeper in self._keepers.values():
            found = self._footprint(keeper, reading)
            keeper.peak_bytes = max(keeper.peak_bytes, found)
            if found > self.ledger.held_bytes(keeper.model):
                self._size(keeper, found)
                is_as_promised &= found <= self.ledger.held_bytes(keeper.model)
        before = self._pressure.level
        self._pressure.take(reading, is_as_promised=is_as_promised)
        if self._pressure.level is not before:
            told = self._log.info if self._pressure.level is PressureLevel.NORMAL else self._log.warning
            told("memory pressure", level=self._pressure.level.name, used_percent=round(self._pressure.share * 100))

    def advance(self) -> None:
        """Do what can be done now for the loads that wait."""
        for model in self.ledger.line:
            self._drop_forsaken(model)
        self._shed()
        while self.ledger.line and self._step():
            pass

    def mind(self, keeper: Keeper) -> None:
        """Have a model go when it was idle for as long as it may be."""
        keeper.cancel_idle_timer()
        left_s = keeper.idle_left_s()
        if left_s is not None:
            loop = asyncio.get_running_loop()
            keeper.idle_timer = loop.call_later(left_s, self._hooks.post, partial(self._retire_idle, keeper))

    def _retire_idle(self, keeper: Keeper) -> None:
        left_s = keeper.idle_left_s()
        if left_s is None:
            return
        if left_s > 0:
            self.mind(keeper)
            return
        self._log.info("model idle for long", model=keeper.model)
        self._hooks.apply(keeper, Retired(DEFAULT_GRACE_S))

    def _step(self) -> bool:
        """Do the next thing for the loads that wait; say whether there was one."""
        step = self.ledger.next_step(self._residents(), self._conditions())
        for model, words in step.waiting.items():
            self._tell_waiting(self._keepers[model], words)
        if step.granted is not None:
            self._grant(self._keepers[step.granted])
            return True
        for model in step.evicted:
            self._log.info("model goes for another", model=model)
            self._onlooker.evicted(model)
            self._hooks.apply(self._keepers[model], Retired(DEFAULT_GRACE_S))
        if step.evicted:
            return True
        for model in (*self.ledger.line, *self._unsized):
            if self.ledger.needed_bytes(model) is None:
                self._ask(self._keepers[model])
        self._look_again()
        return False

    def _grant(self, keeper: Keeper) -> None:
        if self.ledger.needed_bytes(keeper.model) is None:
            self._unsized.add(keeper.model)
        self.ledger.grant(keeper.model)
        keeper.reserved_bytes = self.ledger.held_bytes(keeper.model)
        keeper.waiting_for = ""
        self._hooks.apply(keeper, Granted())

    def _ask(self, keeper: Keeper) -> None:
        self._needs.ask(keeper.model, self._options(keeper), partial(self._post_need, keeper))

    def _post_need(self, keeper: Keeper, need: Need) -> None:
        self._hooks.post(partial(self._note_need, keeper, need))

    def _note_need(self, keeper: Keeper, need: Need) -> None:
        """Take what a load takes, unless it is another one by now."""
        if self._keepers.get(keeper.model) is not keeper or need.options != self._options(keeper):
            return
        budget_bytes = self.ledger.budget_bytes
        if need.size.least > budget_bytes and keeper.life.state is S.QUEUED:
            self._hooks.apply(keeper, Refused(exceeds_memory(keeper.model, need.size.least, budget_bytes)))
            return
        self._unsized.discard(keeper.model)
        self._size(keeper, min(budget_bytes, max(need.size.most, need.measured_bytes, keeper.peak_bytes)))

    def _size(self, keeper: Keeper, needed_bytes: int) -> None:
        self.ledger.size(keeper.model, needed_bytes)
        keeper.reserved_bytes = self.ledger.held_bytes(keeper.model)

    def _options(self, keeper: Keeper) -> LoadOptions:
        return keeper.life.options if keeper.life.state is S.QUEUED else keeper.loaded_options

    def _drop_forsaken(self, model: str) -> None:
        """Take a load out of the line that does not wait any more, or that nobody waits for."""
        keeper = self._keepers.get(model)
        if keeper is not None and keeper.life.state is S.QUEUED and not keeper.is_awaited:
            self._hooks.apply(keeper, Forsaken())
        if keeper is None or keeper.life.state is not S.QUEUED:
            self.ledger.leave(model)

    def _shed(self) -> None:
        """Have the newest load go where memory is as good as full; one at a time, and each for a reading of its own."""
        reading = self._pressure.reading
        if self._pressure.level is not PressureLevel.HARD_LIMIT or reading is None or reading is self._shed_for:
            return
        is_old = reading.began_s < self._last_exit_s
        if is_old or any(one.life.state in LEAVING for one in self._keepers.values()):
            return
        able = [one for one in self._keepers.values() if one.life.state in SHEDDABLE]
        newest = max(able, key=lambda one: (not one.is_pinned, one.started_s), default=None)
        if newest is not None:
            self._shed_for = reading
            self._log.warning("model goes, for memory is as good as full", model=newest.model)
            self._hooks.apply(newest, Retired(0.0))

    def _residents(self) -> list[Resident]:
        return [self._resident(keeper) for keeper in self._keepers.values() if keeper.supervisor is not None]

    def _resident(self, keeper: Keeper) -> Resident:
        resident = keeper.resident(self._limits.min_residence_s, self._footprint(keeper, self._pressure.reading))
        return replace(resident, may_go=resident.may_go and keeper.model not in self._unsized)

    def _conditions(self) -> Conditions:
        return Conditions(self._pressure.excess_bytes, self._is_settling())

    def _expect_back(self, supervisor: Supervisor) -> None:
        """Note how much memory is to be free once that of a worker is back."""
        now_s, reading = self._hooks.now(), self._pressure.reading
        was_settling, self._last_exit_s = self._is_settling(), now_s
        if reading is None or reading.machine.free_bytes is None or supervisor.instance is None:
            return
        held_bytes = reading.footprints.get(supervisor.instance.pid, 0)
        before_bytes = self._expected_free_bytes if was_settling else reading.machine.free_bytes
        self._expected_free_bytes = before_bytes + int(RETURNED_SHARE * held_bytes)
        self._settles_until_s = now_s + self._limits.settle_s
        self._hooks.hurry()

    def _is_settling(self) -> bool:
        """Say whether memory of workers that are gone does not show yet, and still may."""
        reading = self._pressure.reading
        if self._hooks.now() >= self._settles_until_s or reading is None or reading.machine.free_bytes is None:
            return False
        needed = [self.ledger.needed_bytes(model) for model in self.ledger.line[:1]]
        enough_bytes = min([self._expected_free_bytes, *(one for one in needed if one is not None)])
        return reading.began_s < self._last_exit_s or reading.machine.free_bytes < enough_bytes

    def _look_again(self) -> None:
        """Look again once a model that may not go for another yet may, or memory has had its time to come back."""
        now_s, residence_s = self._hooks.now(), self._limits.min_residence_s
        stays_s = [one.residence_left_s(residence_s) for one in self._keepers.values() if one.is_idle]
        waits_s = [one for one in (*stays_s, self._settles_until_s - now_s) if one > 0]
        if self._timer is not None:
            self._timer.cancel()
        if waits_s:
            self._timer = asyncio.get_running_loop().call_later(min(waits_s), self._hooks.post, _nothing)

    def _tell_waiting(self, keeper: Keeper, words: str) -> None:
        if keeper.waiting_for != words:
            keeper.waiting_for = words
            self._hooks.tell(keeper.model)

    def _footprint(self, keeper: Keeper, reading: Reading | None) -> int:
        instance = keeper.supervisor.instance if keeper.supervisor is not None else None
        return reading.footprints.get(instance.pid, 0) if instance is not None and reading is not None else 0


def _nothing() -> None:
    """Do nothing: what follows everything that is done is what matters."""
