"""The slots of experts that are alike: what lies in them, what is read into them, and what computes with them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import ENODATA
from pathlib import Path

from models.checkpoint.stored_experts import Place, StoredExperts
from models.errors import ExpertUnreadable
from models.experts.account import ExpertAccount
from models.experts.geometry import Geometry, conversion_of
from models.experts.residency import Division, Passage, Residency
from models.layers.arithmetic import Activation, Arithmetic, ExpertsProduct
from native.errors import FileUnopened
from native.slab import Conversion, Segment, Slab

# For the experts of a wave together. A disk that sleeps takes some seconds to wake; what takes longer does not come.
LONGEST_WAVE_S = 30.0
READ_THREADS = 4
# Through which each of them reads.
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a region's places are filled from, for the experts of one layer.

    Attributes:
        region: of the slab.
        nbytes: of one expert's, as stored.
        conversion: of its numbers.
        places: of each expert's.
    """

    region: int
    nbytes: int
    conversion: Conversion
    places: Sequence[Place]


class ExpertSlab:
    """The slots of one geometry, for the thread that steps the model.

    Args:
        geometry: of the experts.
        layers: whose experts lie in the slots; they are numbered in this order here.
        division: of the slots.
        account: where misses are counted.
        bypasses_cache: whether what is read stays out of the system's cache.

    Attributes:
        residency: what lies where.
    """

    def __init__(
        self,
        geometry: Geometry,
        layers: Sequence[StoredExperts],
        division: Division,
        account: ExpertAccount,
        *,
        bypasses_cache: bool = True,
    ) -> None:
        self.residency = Residency(division)
        self._geometry = geometry
        self._layers = layers
        self._account = account
        self._slab = Slab(division.num_slots, num_threads=READ_THREADS, bypasses_cache=bypasses_cache)
        self._regions = [self._slab.add_region(part.shape, part.mlx_dtype) for part in geometry.parts]
        self._generations = [0] * division.num_slots
        self._files: dict[Path, int] = {}
        self._sources = [_sources(layer, self._regions) for layer in layers]
        self._stored_bytes = [sum(stack.nbytes for stack in layer.parts) for layer in layers]
        self._num_evictions = 0

    @property
    def num_experts(self) -> int:
        """Of a layer."""
        return self._geometry.num_experts

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert in its slot."""
        return self._geometry.expert_bytes

    @property
    def nbytes(self) -> int:
        """Bytes that the slots take once all were filled, with those that are read through."""
        return self._slab.num_bytes

    def product(self, arithmetic: Arithmetic, activation: Activation) -> ExpertsProduct:
        """Return what gives tokens to experts by the numbers of their slots."""
        arrays = [self._slab.array(region) for region in self._regions]
        return arithmetic.experts(self._geometry.stacks(arrays), activation)

    def begin(self, layer: int, experts: Iterable[int]) -> Passage:
        """Begin a layer's part of a step, and lease the experts that are there."""
        for slot in self.residency.stuck_slots:
            if self._slab.state(slot) != "loading":
                self.residency.unstick(slot)
        passage = Passage(self.residency, layer, experts)
        self._lease(passage.hits)
        self._account.hits_total += len(passage.hits)
        self._account.misses_total += passage.num_missing
        return passage

    def read(self, passage: Passage) -> None:
        """Start to read as many of the missing experts as there is room for."""
        for expert, slot in passage.place():
            self._generations[slot] = self._slab.fill(slot, self._reads(passage.layer, expert))
        self._account.evictions_total += self.residency.num_evictions - self._num_evictions
        self._num_evictions = self.residency.num_evictions

    def wait(self, passage: Passage) -> dict[int, int]:
        """Wait for the next wave, and return its experts with their slots, leased.

        Raises:
            ExpertUnreadable: one of them cannot be read, or not in time; or none is being read, because reads that do
                not end have all slots.
        """
        if passage.next_expert is not None and not passage.reading:
            raise self._unreadable(passage.layer, passage.next_expert, 0)
        began, deadline = time.perf_counter_ns(), time.monotonic() + LONGEST_WAVE_S
        try:
            for expert, slot in passage.next_wave().items():
                left_s = max(0.0, deadline - time.monotonic())
                arrival, code = self._slab.wait(slot, self._generations[slot], left_s)
                if arrival != "ready":
                    raise self._unreadable(passage.layer, expert, code)
        finally:
            self._account.stall_ns_total += time.perf_counter_ns() - began
        wave = passage.take_wave()
        self._lease(wave)
        self._account.bytes_read_total += len(wave) * self._stored_bytes[passage.layer]
        return wave

    def release(self, passage: Passage, experts: Mapping[int, int]) -> None:
        """Give the leases of experts back, once what reads their slots is computed."""
        for slot in experts.values():
            self._slab.release(slot, self._generations[slot])
        passage.release(experts)

    def give_up(self, passage: Passage) -> None:
        """End a passage whose step has failed: nothing more is read for it."""
        reading = passage.reading
        for slot in reading.values():
            self._slab.cancel(slot, self._generations[slot])
        passage.fail(slot for slot in reading.values() if self._slab.state(slot) == "loading")

    def pin(self, layer: int, experts: Sequence[int]) -> None:
        """Read experts of a layer that are not there, and keep them for good; for before the first step.

        Raises:
            ExpertUnreadable: one cannot be read.
        """
        passage = Passage(self.residency, layer, experts)
        try:
            self.read(passage)
            while passage.num_missing:
                self.release(passage, self.wait(passage))
                self.read(passage)
        except ExpertUnreadable:
            self.give_up(passage)
            raise
        for expert in reversed(experts):
            self.residency.pin(layer, expert)

    def open(self) -> None:
        """Open all files that experts are read from, and keep them: what their paths lead to later is not read.

        Raises:
            ExpertUnreadable: one is gone.
            CheckpointCorrupt: one is no longer the file whose header was read.
        """
        for layer, stored in enumerate(self._layers):
            for stack in stored.parts:
                for expert, place in enumerate(stack.places):
                    if place.file not in self._files:
                        self._files[place.file] = self._opened(layer, expert, place)

    def close(self) -> None:
        """End the threads, and let go of the memory."""
        self._slab.close()

    def _lease(self, experts: Mapping[int, int]) -> None:
        for slot in experts.values():
            self._slab.lease(slot, self._generations[slot])

    def _reads(self, layer: int, expert: int) -> list[list[Segment]]:
        """Return what fills a slot: a read for each matrix, so that several threads share one expert."""
        reads: list[list[Segment]] = []
        for matrix in self._sources[layer]:
            read: list[Segment] = []
            for source in matrix:
                place = source.places[expert]
                file = self._files[place.file]
                read.append((source.region, file, place.offset, source.nbytes, source.conversion))
            reads.append(read)
        return reads

    def _opened(self, layer: int, expert: int, place: Place) -> int:
        try:
            file = self._slab.open(place.file)
        except FileUnopened as error:
            raise self._unreadable(layer, expert, error.code) from error
        if place.identity is not None:
            place.identity.check(place.file)  # after it was opened, so that it is the one that is read
        return file

    def _unreadable(self, layer: int, expert: int, code: int) -> ExpertUnreadable:
        stored = self._layers[layer]
        if code == 0:
            problem = "is not read in time"
        else:
            problem = "breaks off" if code == ENODATA else f"cannot be read: {os.strerror(code)}"
        file = stored.gate.weight.places[expert].file.name
        return ExpertUnreadable(stored.shape.module, expert, file=file, problem=problem, code=code)


def _sources(stored: StoredExperts, regions: Sequence[int]) -> list[list[_Source]]:
    """Return the sources of each matrix of a layer's experts."""
    number = iter(regions)
    return [
        [_Source(next(number), stack.nbytes, conversion_of(stack), stack.places) for stack in matrix.parts]
        for matrix in (stored.gate, stored.up, stored.down)
    ]
