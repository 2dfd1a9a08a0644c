"""Slots of a slab: never more than there are, none taken from who uses it, and every routed expert served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ExpertMisplaced, SlotsTooFew
from models.experts.residency import MAX_WAVE_EXPERTS, Division, Passage, Residency

NUM_EXPERTS = 12


class Slab:
    """Slots that hold the names of experts, filled in the order in which waves are taken."""

    def __init__(self, residency: Residency) -> None:
        self.residency = residency
        self.slots: list[tuple[int, int] | None] = [None] * residency.division.num_slots
        self.used: list[tuple[int, dict[int, int]]] = []  # leased by computations that are under way
        self.num_reads = 0

    def read(self, layer: int, placed: list[tuple[int, int]]) -> None:
        for expert, slot in placed:
            assert all(slot not in wave.values() for _, wave in self.used), "a slot is written that is being read"
            self.slots[slot] = (layer, expert)
            self.num_reads += 1
        assert self.residency.num_used <= self.residency.division.num_slots

    def use(self, layer: int, wave: dict[int, int]) -> None:
        self.used.append((layer, wave))
        self.check()

    def check(self) -> None:
        for layer, wave in self.used:
            assert all(self.slots[slot] == (layer, expert) for expert, slot in wave.items())

    def settle(self, passage: Passage) -> None:
        self.check()
        for _, wave in self.used:
            passage.release(wave)
        self.used.clear()


def serve(slab: Slab, layer: int, experts: list[int], fails_at: int | None = None) -> set[int]:
    """Take a layer through a step as `StreamedExperts` does; return the experts that were computed with."""
    passage = Passage(slab.residency, layer, experts)
    served = set(passage.hits)
    slab.use(layer, passage.hits)
    slab.read(layer, passage.place())
    num_waves = 0
    while passage.num_missing:
        if not passage.next_wave():
            slab.settle(passage)
            slab.read(layer, passage.place())
        assert passage.next_wave(), "nothing is read although nothing is leased"
        if num_waves == fails_at:
            passage.fail()
            break
        wave = passage.take_wave()
        assert len(wave) <= MAX_WAVE_EXPERTS
        num_waves += 1
        slab.settle(passage)
        slab.read(layer, passage.place())
        slab.use(layer, wave)
        served |= set(wave)
    passage.finish()
    slab.settle(passage)
    return served


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    num_layers, per_token = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    least = Division.least(num_layers, per_token)
    return Division.of(draw(st.integers(least, least + 40)), num_layers, per_token)


steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.integers(0, NUM_EXPERTS - 1), unique=True, min_size=1),
        st.none() | st.integers(0, 3),
    ),
    max_size=30,
)


@given(divisions(), steps)
def test_serves_every_routed_expert_and_never_takes_a_leased_slot(
    division: Division, routed: list[tuple[int, list[int], int | None]]
) -> None:
    slab = Slab(Residency(division))
    for layer, experts, fails_at in routed:
        served = serve(slab, layer % division.num_layers, experts, fails_at)
        assert fails_at is not None or served == set(experts)
        held = [
            (layer, expert, slab.residency.slot(layer, expert))
            for layer in range(division.num_layers)
            for expert in range(NUM_EXPERTS)
            if slab.residency.slot(layer, expert) is not None
        ]
        slots = [slot for _, _, slot in held]
        assert len(set(slots)) == len(slots) == slab.residency.num_used <= division.num_slots
        assert all(slab.slots[slot] == (layer, expert) for layer, expert, slot in held if slot is not None)
        assert not slab.residency._leases


@given(divisions(), steps, st.lists(st.tuples(st.integers(0, 3), st.integers(0, NUM_EXPERTS - 1)), max_size=6))
def test_pinned_experts_stay(
    division: Division, routed: list[tuple[int, list[int], int | None]], pins: list[tuple[int, int]]
) -> None:
    slab = Slab(Residency(division))
    pinned: dict[int, set[int]] = {}
    for layer, expert in ((layer % division.num_layers, expert) for layer, expert in pins):
        if len(pinned.get(layer, set()) | {expert}) < division.layer_slots:
            serve(slab, layer, [expert])
            slab.residency.pin(layer, expert)
            pinned.setdefault(layer, set()).add(expert)
    for layer, experts, fails_at in routed:
        serve(slab, layer % division.num_layers, experts, fails_at)
        for pinned_layer, names in pinned.items():
            assert slab.residency.pinned(pinned_layer) == names
            assert all(slab.residency.slot(pinned_layer, expert) is not None for expert in names)


@given(divisions(), steps, st.integers(0, 200))
def test_stuck_reads_take_slots_until_they_end(
    division: Division, routed: list[tuple[int, list[int], int | None]], seed: int
) -> None:
    residency = Residency(division)
    slot = residency.place(0, 0)
    assert slot is not None
    residency.failed(0, 0, is_stuck=True)
    slab = Slab(residency)
    for layer, experts, _ in routed:
        serve(slab, layer % division.num_layers, experts)
        assert slab.slots[slot] is None
    residency.unstick(slot)
    assert not residency.stuck_slots
    assert serve(slab, 0, list(range(NUM_EXPERTS))) == set(range(NUM_EXPERTS))


def test_a_layer_keeps_what_it_used_last_whatever_the_others_use() -> None:
    slab = Slab(Residency(Division.of(20, 4, 2)))
    own = slab.residency.division.layer_slots
    for layer in range(4):
        serve(slab, layer, list(range(own)))
    for _ in range(5):
        serve(slab, 3, list(range(own, NUM_EXPERTS)))
    reads = slab.num_reads
    for layer in range(3):
        serve(slab, layer, list(range(own)))
    assert slab.num_reads == reads


def test_of_many_experts_the_first_are_kept() -> None:
    slab = Slab(Residency(Division.of(6, 2, 4)))
    serve(slab, 0, [7, 3, 5])
    serve(slab, 1, [0, 1, 2, 3])
    serve(slab, 1, [4, 5, 6, 8])
    assert slab.residency.slot(0, 7) is not None
    assert slab.residency.slot(0, 3) is None


def test_what_fell_out_of_a_layer_is_there_until_its_slot_is_needed() -> None:
    slab = Slab(Residency(Division.of(4, 1, 3)))
    serve(slab, 0, [0, 1, 2, 3])
    reads = slab.num_reads
    serve(slab, 0, [3, 2, 1, 0])
    assert slab.num_reads == reads
    assert slab.residency.num_evictions == 0
    serve(slab, 0, [4])
    assert slab.residency.num_evictions == 1
    assert slab.residency.slot(0, 0) is None  # of the last step the last


def test_slots_are_divided_within_their_number() -> None:
    for num_slots in range(5, 300):
        division = Division.of(num_slots, 3, 2)
        assert division.layer_slots >= 1
        assert division.num_spare >= 2
        assert division.num_spare + 3 * division.layer_slots == num_slots


def test_refuses_too_few_slots() -> None:
    with pytest.raises(SlotsTooFew) as refused:
        Division.of(4, 3, 2)
    assert (refused.value.num_slots, refused.value.least) == (4, 5)


def test_refuses_what_contradicts_itself() -> None:
    residency = Residency(Division.of(6, 2, 2))
    residency.place(0, 1)
    with pytest.raises(ExpertMisplaced, match="placed twice"):
        residency.place(0, 1)
    assert residency.lease(0, 1) is None  # it is still being read
    residency.filled(0, 1)
    with pytest.raises(ExpertMisplaced, match="was not being read"):
        residency.filled(0, 1)
    residency.release(0, 1)
    with pytest.raises(ExpertMisplaced, match="was not leased"):
        residency.release(0, 1)
    with pytest.raises(ExpertMisplaced, match="not there"):
        residency.pin(0, 2)


def test_leases_are_counted() -> None:
    residency = Residency(Division.of(3, 1, 2))
    residency.place(0, 1)
    residency.filled(0, 1)
    assert residency.lease(0, 1) == residency.slot(0, 1)
    residency.release(0, 1)
    assert residency._leases
    residency.release(0, 1)
    assert not residency._leases


def test_an_expert_that_is_unpinned_can_go() -> None:
    slab = Slab(Residency(Division(7, 1, 4)))
    serve(slab, 0, [0])
    slab.residency.pin(0, 0)
    for expert in range(1, NUM_EXPERTS):
        serve(slab, 0, [expert])
    assert slab.residency.slot(0, 0) is not None
    slab.residency.unpin(0, 0)
    for expert in range(1, NUM_EXPERTS):
        serve(slab, 0, [expert])
    assert slab.residency.slot(0, 0) is None
