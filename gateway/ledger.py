"""Who has how many bytes of the memory for models, who waits for some, and who is to go for them.

Plain Python without a clock, a process or a task. What is reserved never exceeds the budget. Loads wait in a line,
first come, first served; one may pass another only where both fit side by side once everything else has gone. Of models
that may go, those go first that were used longest ago, and none where that would not be enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

GB = 1e9


class OverBudget(Exception):
    """Raised when more would be reserved than there is: a broken invariant."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that has a worker, as it is now.

    Attributes:
        model: its name.
        may_go: nobody uses it or waits for it, and nothing keeps it here.
        is_leaving: its worker is on its way out.
        is_pinned: it stays, whatever others need.
        last_used_s: a time, of any clock.
        footprint_bytes: what its worker has in fact.
    """

    model: str
    may_go: bool = False
    is_leaving: bool = False
    is_pinned: bool = False
    last_used_s: float = 0.0
    footprint_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the machine allows now, whatever the ledger says.

    Attributes:
        excess_bytes: what must become free before a load may start; above 0 none may.
        is_settling: memory of a worker that is gone is not back yet.
    """

    excess_bytes: int = 0
    is_settling: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done next.

    Attributes:
        granted: the load that is to begin; None: none can.
        evicted: the models that are to go.
        waiting: what each load in the line waits for, in words.
    """

    granted: str | None = None
    evicted: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _Place:
    """A load's place in the line; `needed_bytes` is None while it is not known."""

    may_evict: bool
    needed_bytes: int | None = None


class Ledger:
    """The memory for models.

    Args:
        budget_bytes: what they may take together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._held: dict[str, int] = {}
        self._line: dict[str, _Place] = {}
        self._passed: set[str] = set()  # loads that began while one that had come before them still waited

    @property
    def reserved_bytes(self) -> int:
        """What is reserved, for all together."""
        return sum(self._held.values())

    @property
    def room_bytes(self) -> int:
        """What is left."""
        return self.budget_bytes - self.reserved_bytes

    @property
    def line(self) -> Sequence[str]:
        """The loads that wait, in their order."""
        return tuple(self._line)

    def held_bytes(self, holder: str) -> int:
        """Return what is reserved for a model."""
        return self._held.get(holder, 0)

    def needed_bytes(self, model: str) -> int | None:
        """Return what a load that waits needs; None where that is not known, or it does not wait."""
        return self._line[model].needed_bytes if model in self._line else None

    def join(self, model: str, *, may_evict: bool = True) -> None:
        """Have a load wait; one that does already keeps its place, and its need is to be told anew."""
        place = self._line.setdefault(model, _Place(may_evict))
        place.may_evict, place.needed_bytes = may_evict, None

    def allow_eviction(self, model: str) -> None:
        """Let others go for a load that waits."""
        if model in self._line:
            self._line[model].may_evict = True

    def leave(self, model: str) -> None:
        """Have a load wait no more."""
        self._line.pop(model, None)
        if not self._line:
            self._passed.clear()

    def size(self, model: str, needed_bytes: int) -> None:
        """Note what a model needs: one that waits, or one that has memory, as far as there is room for more."""
        if model in self._line:
            self._line[model].needed_bytes = needed_bytes
        elif model in self._held:
            self._held[model] = min(needed_bytes, self._held[model] + self.room_bytes)

    def grant(self, model: str) -> None:
        """Reserve what a load needs that waits; where that is not known, all that is left.

        Raises:
            OverBudget: there is less than that.
        """
        place = self._line[model]
        needed_bytes = self.room_bytes if place.needed_bytes is None else place.needed_bytes
        if needed_bytes > self.room_bytes or model in self._held:
            raise OverBudget(f"{model} needs {needed_bytes} of {self.room_bytes}")
        if next(iter(self._line)) != model:
            self._passed.add(model)
        self._held[model] = needed_bytes
        self.leave(model)

    def release(self, holder: str) -> None:
        """Give back what is reserved for a model whose process is gone."""
        self._held.pop(holder, None)
        self._passed.discard(holder)

    def strand(self, model: str, holder: str) -> None:
        """Keep what is reserved for a process that cannot be ended, under another name."""
        if model in self._held:
            self._held[holder] = self._held.pop(model)

    def next_step(self, residents: Sequence[Resident], conditions: Conditions) -> Step:
        """Return what is to be done next; it is asked again once that is done.

        Args:
            residents: the models that have a worker.
            conditions: of the machine.
        """
        waiting: dict[str, str] = {}
        ahead_bytes = 0  # needed by those that others pass
        for model, place in self._line.items():
            if place.needed_bytes is None:
                if not self._held and len(self._line) == 1 and _is_calm(conditions):
                    return Step(model)
                waiting[model] = "its size to be known"
                continue
            if ahead_bytes and not self._fits_beside(place.needed_bytes, ahead_bytes, residents):
                waiting[model] = "the loads before it"
                continue
            step = self._place_step(model, place, residents, conditions, may_evict=place.may_evict and not ahead_bytes)
            waiting.update(step.waiting)
            if step.granted is not None or step.evicted:
                return Step(step.granted, step.evicted, waiting)
            if place.may_evict and place.needed_bytes + self._pinned_bytes(residents) <= self.budget_bytes:
                ahead_bytes += place.needed_bytes
        return Step(waiting=waiting)

    def _place_step(
        self, model: str, place: _Place, residents: Sequence[Resident], conditions: Conditions, *, may_evict: bool
    ) -> Step:
        """Return what is to be done for one load, or what it waits for."""
        needed_bytes = place.needed_bytes or 0
        leaving = [one for one in residents if one.is_leaving]
        short = needed_bytes - self.room_bytes - sum(self.held_bytes(one.model) for one in leaving)
        excess = conditions.excess_bytes - sum(one.footprint_bytes for one in leaving)
        if short <= 0 and excess <= 0:
            if needed_bytes <= self.room_bytes and _is_calm(conditions):
                return Step(model)
            return Step(waiting={model: "memory that models give back"})
        victims = victims_among(residents, self._held, short, excess) if may_evict else ()
        if victims:
            return Step(evicted=victims, waiting={model: "models that go for it"})
        if short <= 0:
            return Step(waiting={model: "the memory of the machine to be less full"})
        sizes = f"{needed_bytes / GB:.2f} GB of memory, of which {self.room_bytes / GB:.2f} GB are free"
        others = "the models that have the rest are pinned, in use or new, and may not go now"
        return Step(waiting={model: f"{sizes}; {others if place.may_evict else 'this load sends no other away'}"})

    def _fits_beside(self, needed_bytes: int, ahead_bytes: int, residents: Sequence[Resident]) -> bool:
        """Say whether a load and those before it fit together, whatever goes on besides."""
        passed = sum(self.held_bytes(model) for model in self._passed)
        return needed_bytes + ahead_bytes + passed + self._pinned_bytes(residents) <= self.budget_bytes

    def _pinned_bytes(self, residents: Sequence[Resident]) -> int:
        pinned = {one.model for one in residents if one.is_pinned} - self._passed
        return sum(self.held_bytes(model) for model in pinned)


def victims_among(
    residents: Iterable[Resident], sizes: Mapping[str, int], short_bytes: int, excess_bytes: int = 0
) -> tuple[str, ...]:
    """Return the models to go, the longest unused first; none where all that may go are not enough.

    Args:
        residents: models that have memory.
        sizes: what each has reserved.
        short_bytes: of what is reserved, must come free.
        excess_bytes: of what is in use, must come free.
    """
    chosen = sorted((one for one in residents if one.may_go), key=lambda one: one.last_used_s)

    def is_enough(some: Sequence[Resident]) -> bool:
        reserved, used = sum(sizes.get(one.model, 0) for one in some), sum(one.footprint_bytes for one in some)
        return reserved >= short_bytes and used >= excess_bytes

    if not is_enough(chosen):
        return ()
    for one in reversed(tuple(chosen)):  # the one used last is spared first
        rest = [each for each in chosen if each is not one]
        if is_enough(rest):
            chosen = rest
    return tuple(one.model for one in chosen)


def _is_calm(conditions: Conditions) -> bool:
    return conditions.excess_bytes <= 0 and not conditions.is_settling
