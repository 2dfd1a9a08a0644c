"""Which experts lie in the slots of a slab, which of them may go, and in what order a layer's are served.

A slab has as many slots as its budget allows, and never more: that is how a budget is held at every instant. Each slot
is free, holds an expert of some layer, or is being filled with one. A layer has a share of the slots for itself, in
which the experts lie that it used last, some of them pinned; what falls out of it stays in the spare slots until one of
them is needed for a read. A shared order of all layers would be of no use: a step goes through the layers one after the
other, so what was used longest ago is what the next step needs first.

An expert that is leased stays where it is: a computation reads it, or a read fills it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from models.errors import ExpertMisplaced, SlotsTooFew

# (layer, expert); layers are numbered within their slab.
Expert = tuple[int, int]
# A wave has at most so many experts.
MAX_WAVE_EXPERTS = 64
# So few are one wave: to compute some of them while the others are read gains less than a wave more costs.
SMALL_WAVE_EXPERTS = 8


@dataclass(frozen=True, slots=True)
class Division:
    """How the slots of a slab are divided.

    Attributes:
        num_slots: of all.
        num_layers: that share them.
        layer_slots: a layer's own.
    """

    num_slots: int
    num_layers: int
    layer_slots: int

    @classmethod
    def of(cls, num_slots: int, num_layers: int, experts_per_token: int) -> Division:
        """Divide slots: at least as many spare ones as a token has experts, and at least one for each layer.

        Of more, a quarter is spare, and 64 at most: they are what waves are read into.

        Raises:
            SlotsTooFew: there are fewer slots than that.
        """
        least = cls.least(num_layers, experts_per_token)
        if num_slots < least:
            raise SlotsTooFew(num_slots, least)
        num_spare = max(experts_per_token, min(MAX_WAVE_EXPERTS, num_slots // 4))
        return cls(num_slots, num_layers, max(1, (num_slots - num_spare) // num_layers))

    @staticmethod
    def least(num_layers: int, experts_per_token: int) -> int:
        """Return the fewest slots with which layers are served."""
        return num_layers + experts_per_token

    @property
    def num_spare(self) -> int:
        """Slots that are no layer's own."""
        return self.num_slots - self.num_layers * self.layer_slots


class Residency:
    """The account of one slab's slots.

    Args:
        division: of the slots.

    Attributes:
        division: as given.
        num_evictions: experts that had to make room so far.
    """

    def __init__(self, division: Division) -> None:
        self.division = division
        self.num_evictions = 0
        self._slots: dict[Expert, int] = {}
        self._free = list(range(division.num_slots - 1, -1, -1))
        self._stuck: set[int] = set()
        # Of each layer, by last use, the oldest first.
        self._own = [OrderedDict[int, None]() for _ in range(division.num_layers)]
        self._pinned = [set[int]() for _ in range(division.num_layers)]
        self._spare: OrderedDict[Expert, None] = OrderedDict()
        self._loading: set[Expert] = set()
        self._leases: dict[Expert, int] = {}

    @property
    def num_used(self) -> int:
        """Slots that hold something, are being filled, or wait for a read that does not end."""
        return self.division.num_slots - len(self._free)

    def slot(self, layer: int, expert: int) -> int | None:
        """Return where an expert lies that is there whole; None: it is not."""
        at = (layer, expert)
        return None if at in self._loading else self._slots.get(at)

    def lease(self, layer: int, expert: int) -> int | None:
        """Keep an expert where it is until its lease is released, and return the slot; None: it is not there."""
        slot = self.slot(layer, expert)
        if slot is not None:
            self._leases[layer, expert] = self._leases.get((layer, expert), 0) + 1
        return slot

    def release(self, layer: int, expert: int) -> None:
        """Give a lease back.

        Raises:
            ExpertMisplaced: there is none.
        """
        count = self._leases.get((layer, expert), 0)
        if not count:
            raise ExpertMisplaced(layer, expert, "is released and was not leased")
        if count == 1:
            del self._leases[layer, expert]
        else:
            self._leases[layer, expert] = count - 1

    def place(self, layer: int, expert: int) -> int | None:
        """Take a slot that an expert is to be read into, and lease it.

        Returns:
            The slot; None: everything that could make room is leased.

        Raises:
            ExpertMisplaced: it is there already, or is being read.
        """
        if (layer, expert) in self._slots:
            raise ExpertMisplaced(layer, expert, "is placed twice")
        slot = self._free.pop() if self._free else self._evict()
        if slot is None:
            return None
        at = (layer, expert)
        self._slots[at] = slot
        self._spare[at] = None
        self._loading.add(at)
        self._leases[at] = 1
        return slot

    def filled(self, layer: int, expert: int) -> None:
        """Note that an expert was read; it stays leased.

        Raises:
            ExpertMisplaced: it was not being read.
        """
        self._end_loading(layer, expert)

    def failed(self, layer: int, expert: int, *, is_stuck: bool = False) -> None:
        """Note that a read ended without its expert: the lease is gone, and the slot is free.

        Args:
            layer: which one.
            expert: which one.
            is_stuck: whether the read may still write into the slot, which is used no more until `unstick`.

        Raises:
            ExpertMisplaced: it was not being read.
        """
        self._end_loading(layer, expert)
        at = (layer, expert)
        del self._leases[at], self._spare[at]
        slot = self._slots.pop(at)
        if is_stuck:
            self._stuck.add(slot)
        else:
            self._free.append(slot)

    @property
    def stuck_slots(self) -> frozenset[int]:
        """Slots whose reads did not end in time."""
        return frozenset(self._stuck)

    def unstick(self, slot: int) -> None:
        """Use a slot again whose read has ended after all."""
        self._stuck.remove(slot)
        self._free.append(slot)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Note that a layer has used experts which are all there: the first of them as the last.

        They become the layer's own, as many as it has slots for; what falls out is spare.
        """
        own, pinned = self._own[layer], self._pinned[layer]
        for expert in reversed(experts):
            if expert not in pinned:
                own[expert] = None
                own.move_to_end(expert)
                self._spare.pop((layer, expert), None)
        while len(own) > self.division.layer_slots - len(pinned):
            fallen, _ = own.popitem(last=False)
            self._spare[layer, fallen] = None

    def pin(self, layer: int, expert: int) -> None:
        """Keep an expert that is there for good, in one of its layer's own slots.

        Raises:
            ExpertMisplaced: it is not there, or no slot would be left for the layer's other experts.
        """
        if expert in self._pinned[layer]:
            return
        if self.slot(layer, expert) is None:
            raise ExpertMisplaced(layer, expert, "is pinned and not there")
        if len(self._pinned[layer]) + 1 >= self.division.layer_slots:
            raise ExpertMisplaced(layer, expert, "is pinned where all slots are")
        self._own[layer].pop(expert, None)
        self._spare.pop((layer, expert), None)
        self._pinned[layer].add(expert)
        self.touch(layer, ())

    def unpin(self, layer: int, expert: int) -> None:
        """Let a pinned expert go when its turn comes: it counts as used last."""
        self._pinned[layer].remove(expert)
        self.touch(layer, (expert,))

    def pinned(self, layer: int) -> frozenset[int]:
        """Return the experts that a layer keeps."""
        return frozenset(self._pinned[layer])

    def _end_loading(self, layer: int, expert: int) -> None:
        if (layer, expert) not in self._loading:
            raise ExpertMisplaced(layer, expert, "was not being read")
        self._loading.remove((layer, expert))

    def _evict(self) -> int | None:
        """Free the slot of what is spare the longest; of a layer's own only where the spare ones are lost to reads."""
        victim = next((at for at in self._spare if at not in self._leases), None)
        if victim is not None:
            del self._spare[victim]
        elif not self._spare:
            victim = self._oldest_own()
            if victim is None:
                return None
            del self._own[victim[0]][victim[1]]
        else:
            return None
        self.num_evictions += 1
        return self._slots.pop(victim)

    def _oldest_own(self) -> Expert | None:
        for layer in sorted(range(len(self._own)), key=lambda layer: -len(self._own[layer])):
            for expert in self._own[layer]:
                if (layer, expert) not in self._leases:
                    return layer, expert
        return None


class Passage:
    """One layer's experts in one step: those that are there, and the others in waves as they are read.

        passage.hits, then again and again: passage.place() -> read them -> passage.take_wave() -> passage.release(...)

    Args:
        residency: of the slab.
        layer: which one.
        experts: that its tokens were sent to: each once, in the order of tokens and, of a token, of ranks.

    Attributes:
        layer: as given.
        hits: experts that are there, leased, with their slots.
    """

    def __init__(self, residency: Residency, layer: int, experts: Iterable[int]) -> None:
        self.layer = layer
        self.hits: dict[int, int] = {}
        self._residency = residency
        self._used = list(experts)
        self._waiting: list[int] = []  # the next one last
        self._reading: OrderedDict[int, int] = OrderedDict()
        for expert in self._used:
            slot = residency.lease(layer, expert)
            if slot is None:
                self._waiting.append(expert)
            else:
                self.hits[expert] = slot
        self._waiting.reverse()
        num_spare = residency.division.num_spare
        is_small = len(self._waiting) <= min(SMALL_WAVE_EXPERTS, num_spare)
        self._wave_experts = SMALL_WAVE_EXPERTS if is_small else max(1, min(MAX_WAVE_EXPERTS, num_spare // 2))

    @property
    def num_missing(self) -> int:
        """Experts that no wave has had yet."""
        return len(self._waiting) + len(self._reading)

    def place(self) -> list[tuple[int, int]]:
        """Return experts and slots that are to be read now, leased; none where nothing can make room before a release.

        What is being read is at most two waves: one that is next, and one behind it.
        """
        placed: list[tuple[int, int]] = []
        while self._waiting and len(self._reading) < 2 * self._wave_experts:
            slot = self._residency.place(self.layer, self._waiting[-1])
            if slot is None:
                break
            expert = self._waiting.pop()
            self._reading[expert] = slot
            placed.append((expert, slot))
        return placed

    @property
    def next_expert(self) -> int | None:
        """The next expert that is to be read, and has no slot yet; None: there is none."""
        return self._waiting[-1] if self._waiting else None

    @property
    def reading(self) -> Mapping[int, int]:
        """Experts that are being read, with their slots."""
        return self._reading

    def next_wave(self) -> dict[int, int]:
        """Return the experts, with their slots, whose reads the next wave waits for; none where none are being read."""
        return dict(islice(self._reading.items(), self._wave_experts))

    def take_wave(self) -> dict[int, int]:
        """Return the experts of the next wave with their slots, once they were read; they stay leased."""
        wave = {expert: self._reading.pop(expert) for expert in self.next_wave()}
        for expert in wave:
            self._residency.filled(self.layer, expert)
        return wave

    def release(self, experts: Iterable[int]) -> None:
        """Give the leases of hits or of a wave back, once what reads them is computed."""
        for expert in experts:
            self._residency.release(self.layer, expert)

    def finish(self) -> None:
        """Note what the layer has used, once every wave was taken."""
        there = [expert for expert in self._used if self._residency.slot(self.layer, expert) is not None]
        self._residency.touch(self.layer, there)

    def fail(self, stuck: Iterable[int] = ()) -> None:
        """Give up what is still to be read.

        Args:
            stuck: slots whose reads have not ended.
        """
        stuck_slots = set(stuck)
        for expert, slot in self._reading.items():
            self._residency.failed(self.layer, expert, is_stuck=slot in stuck_slots)
        self._reading.clear()
        self._waiting.clear()
