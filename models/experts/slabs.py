"""The slabs of one model: how its budget is divided among them, what is in them at the start, and how they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from models.checkpoint.shards import ReportBytes, ignore_bytes
from models.checkpoint.stored_experts import StoredExperts
from models.errors import SlotsTooFew
from models.experts.account import ExpertAccount
from models.experts.errors import SlabsUnavailable
from models.experts.expert_slab import READ_BYTES, READ_THREADS, ExpertSlab
from models.experts.geometry import Geometry
from models.experts.residency import Division
from models.experts.streamed import Leases, StreamedExperts
from models.experts.usage import UsageLedger
from models.layers.arithmetic import Activation, Arithmetic
from native.errors import ExtensionUnloadable, MemoryUnshared, NotBuilt


@dataclass(slots=True)
class _Group:
    """Layers that share a slab.

    Attributes:
        geometry: of their experts.
        arithmetic: what computes.
        activation: of their gates.
        stored: of each layer.
        layers: as the model has them.
        numbers: of each layer among all of the model that have experts.
    """

    geometry: Geometry
    arithmetic: Arithmetic
    activation: Activation
    stored: list[StoredExperts] = field(default_factory=list[StoredExperts])
    layers: list[StreamedExperts] = field(default_factory=list[StreamedExperts])
    numbers: list[int] = field(default_factory=list[int])

    @property
    def num_experts(self) -> int:
        """Of all layers."""
        return len(self.layers) * self.geometry.num_experts


class Slabs:
    """Makes the experts of a model whose weights are read as they are needed, within a budget.

        slabs = Slabs(...); Weights(..., experts=ExpertsHooks(slabs)); ...; slabs.fill(); steps; slabs.close()

    Args:
        experts_per_token: that the router chooses in a layer.
        budget_bytes: what all slots and what is read through may take; None: as much as all experts need.
        usage_file: where it is kept which experts were needed often; None: nowhere.
        account: where hits and misses are counted.
        bypasses_cache: whether what is read stays out of the system's cache, which is memory beside the budget.

    Attributes:
        account: as given.
    """

    def __init__(
        self,
        experts_per_token: int,
        budget_bytes: int | None,
        usage_file: Path | None = None,
        *,
        account: ExpertAccount | None = None,
        bypasses_cache: bool = True,
    ) -> None:
        self.account = ExpertAccount() if account is None else account
        self._experts_per_token = experts_per_token
        self._budget_bytes = budget_bytes
        self._usage_file = usage_file
        self._bypasses_cache = bypasses_cache
        self._groups: dict[tuple[Geometry, Activation], _Group] = {}
        self._leases = Leases()
        self._slabs: list[ExpertSlab] = []
        self._ledger: UsageLedger | None = None

    @property
    def num_layers(self) -> int:
        """Layers whose experts it has."""
        return sum(len(group.layers) for group in self._groups.values())

    @property
    def stored_bytes(self) -> int:
        """Bytes of all experts in their files."""
        each = (stored for group in self._groups.values() for stored in group.stored)
        return sum(stored.shape.num_experts * stack.nbytes for stored in each for stack in stored.parts)

    @property
    def nbytes(self) -> int:
        """Bytes that the slabs take once all slots were filled, with those that are read through."""
        return sum(slab.nbytes for slab in self._slabs)

    @property
    def least_bytes(self) -> int:
        """The smallest budget that serves a step."""
        return sum(self._bytes(group, self._least(group)) for group in self._groups.values())

    def experts(self, stored: StoredExperts, arithmetic: Arithmetic, activation: Activation) -> StreamedExperts:
        """See `ExpertsSource.experts`.

        Raises:
            CheckpointRejected: slots cannot hold the experts as they are computed with.
        """
        geometry = Geometry.of(stored)
        group = self._groups.setdefault((geometry, activation), _Group(geometry, arithmetic, activation))
        number = self.num_layers
        layer = StreamedExperts(len(group.layers), self._leases, partial(self._note, number))
        group.stored.append(stored)
        group.layers.append(layer)
        group.numbers.append(number)
        return layer

    def fill(self, report: ReportBytes = ignore_bytes) -> None:
        """Make the slabs, once all layers are known, and read the experts that were needed most before.

        Args:
            report: called with (bytes done, bytes in all) of what is read.

        Raises:
            SlotsTooFew: the budget is too small.
            SlabsUnavailable: this install or this device has none.
            ExpertUnreadable: an expert cannot be read.
            CheckpointCorrupt: a file is no longer the one whose header was read.
            MemoryError: the system has no such memory.
        """
        groups = list(self._groups.values())
        slots = self._slots(groups)
        self._ledger = self._kept_usage()
        try:
            for group, num_slots in zip(groups, slots, strict=True):
                self._slabs.append(self._made(group, num_slots))
            for slab in self._slabs:
                slab.open()
            self._pin(self._ledger, groups, report)
        except (NotBuilt, ExtensionUnloadable, MemoryUnshared) as error:
            self.close()
            raise SlabsUnavailable from error
        except BaseException:
            self.close()
            raise

    def forget(self) -> None:
        """Count anew, from the use that is kept in the file on: what was computed until now served nobody."""
        self.account.reset()
        self._ledger = self._kept_usage()

    def close(self) -> None:
        """Write down what was used, end the threads and let go of the memory; a second call does nothing.

        Raises:
            RuntimeError: what was still to be computed cannot be; everything has ended all the same.
        """
        slabs, self._slabs = self._slabs, []
        try:
            self._leases.give_up()
        finally:
            for group in self._groups.values():
                for layer in group.layers:
                    layer.place(None, None)
            for slab in slabs:
                slab.close()
            if self._ledger is not None:
                self._ledger.save()

    def _kept_usage(self) -> UsageLedger:
        num_experts = max((group.geometry.num_experts for group in self._groups.values()), default=0)
        return UsageLedger(self._usage_file, self.num_layers, num_experts)

    def _note(self, number: int, tokens: Mapping[int, int]) -> None:
        if self._ledger is not None:
            self._ledger.note(number, tokens)
            if self._ledger.is_due:
                self._ledger.save()
                self._review(self._ledger)

    def _review(self, ledger: UsageLedger) -> None:
        """Let pinned experts give way to others that are there and were needed more."""
        places = {
            number: (slab.residency, layer)
            for slab, group in zip(self._slabs, self._groups.values(), strict=True)
            for layer, number in enumerate(group.numbers)
        }
        pinned = [places[number][0].pinned(places[number][1]) for number in range(self.num_layers)]
        for number, old, new in ledger.swaps(pinned):
            residency, layer = places[number]
            if residency.slot(layer, new) is not None:
                residency.unpin(layer, old)
                residency.pin(layer, new)

    def _made(self, group: _Group, num_slots: int) -> ExpertSlab:
        division = Division.of(num_slots, len(group.layers), self._experts_per_token)
        slab = ExpertSlab(group.geometry, group.stored, division, self.account, bypasses_cache=self._bypasses_cache)
        product = slab.product(group.arithmetic, group.activation)
        for layer in group.layers:
            layer.place(slab, product)
        return slab

    def _pin(self, ledger: UsageLedger, groups: Sequence[_Group], report: ReportBytes) -> None:
        wanted: list[tuple[ExpertSlab, int, list[int]]] = []
        for slab, group in zip(self._slabs, groups, strict=True):
            count = ledger.num_pinned(slab.residency.division.layer_slots)
            for layer, number in enumerate(group.numbers):
                wanted.append((slab, layer, ledger.hottest(number, count)))
        total = sum(len(experts) * slab.expert_bytes for slab, _, experts in wanted)
        done = 0
        for slab, layer, experts in wanted:
            slab.pin(layer, experts)
            done += len(experts) * slab.expert_bytes
            report(done, total)

    def _least(self, group: _Group) -> int:
        return Division.least(len(group.layers), self._experts_per_token)

    def _most(self, group: _Group) -> int:
        return max(self._least(group), group.num_experts)

    def _bytes(self, group: _Group, num_slots: int) -> int:
        return group.geometry.slots_bytes(num_slots) + READ_THREADS * READ_BYTES

    def _slots(self, groups: Sequence[_Group]) -> list[int]:
        """Divide the budget: to each slab the same share of its experts, but the fewest that it needs in any case.

        Raises:
            SlotsTooFew: there is too little for that.
        """
        if self._budget_bytes is None:
            return [self._most(group) for group in groups]
        least = [self._least(group) for group in groups]
        left = self._budget_bytes - self.least_bytes
        if left < 0:
            room = self._budget_bytes - len(groups) * READ_THREADS * READ_BYTES
            expert_bytes = max(group.geometry.expert_bytes for group in groups)
            raise SlotsTooFew(max(0, room) // expert_bytes, sum(least), self.least_bytes)
        everything = sum(group.geometry.slots_bytes(self._most(group)) for group in groups)
        slots: list[int] = []
        for group, fewest in zip(groups, least, strict=True):
            share = left * group.geometry.slots_bytes(self._most(group)) // everything
            found = group.geometry.most_slots(group.geometry.slots_bytes(fewest) + share)
            slots.append(min(self._most(group), found))
        return slots
