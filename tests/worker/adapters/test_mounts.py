"""Accounting of mounted adapters: within the bytes, and never one away that is used or pinned."""

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.adapters.mounts import Mount, Mounts, MountState
from worker.errors import AdapterCapacity

MAX_BYTES = 100


def mount(name: str, nbytes: int = 40, *, pinned: bool = False, revision: str = "r") -> Mount:
    return Mount(name, name, 1, revision, 4, 2.0, 3, 0, nbytes, pinned)


def mounted(mounts: Mounts, *made: Mount) -> None:
    for each in made:
        assert mounts.make_room(each.name, each.nbytes) == []
        mounts.add(each, each.nbytes)


@pytest.fixture
def mounts() -> Mounts:
    clock = count()
    return Mounts(MAX_BYTES, lambda: float(next(clock)))


def test_the_least_recently_used_idle_ones_make_room(mounts: Mounts) -> None:
    first, second = mount("first"), mount("second")
    mounted(mounts, first, second)
    mounts.use(first)
    mounts.leave(first)
    assert mounts.make_room("third", 50) == [second]
    assert (second.state, mounts.get("second")) == (MountState.EVICTED, None)
    mounts.remove(second)
    assert mounts.nbytes == 90


def test_what_is_used_or_pinned_does_not_go(mounts: Mounts) -> None:
    used, pinned = mount("used"), mount("pinned", pinned=True)
    mounted(mounts, used, pinned)
    mounts.use(used)
    with pytest.raises(AdapterCapacity) as refused:
        mounts.make_room("third", 21)
    assert refused.value.metadata == {"adapter": "third", "bytes": "21", "free_bytes": "20", "max_bytes": "100"}
    assert mounts.nbytes == 80
    mounts.leave(used)
    assert mounts.make_room("third", 21) == [used]


def test_an_idle_one_that_is_replaced_takes_no_room_of_its_own(mounts: Mounts) -> None:
    old = mount("a", 80, pinned=True)
    mounted(mounts, old)
    assert mounts.make_room("a", 100) == []
    assert mounts.add(mount("a", 100, revision="s"), 100) is old
    assert old.state is MountState.RETIRED
    mounts.remove(old)
    assert mounts.nbytes == 100


def test_one_that_is_used_keeps_its_room_when_it_is_replaced(mounts: Mounts) -> None:
    old = mount("a", 80)
    mounted(mounts, old)
    mounts.use(old)
    with pytest.raises(AdapterCapacity):
        mounts.make_room("a", 30)
    mounts.make_room("a", 20)
    mounts.add(mount("a", 20, revision="s"), 20)
    assert mounts.leave(old)
    mounts.remove(old)
    current = mounts.get("a")
    assert current is not None
    assert (current.revision, mounts.nbytes) == ("s", 20)


def test_what_was_to_go_stays_where_nothing_was_mounted(mounts: Mounts) -> None:
    old = mount("a", 80)
    mounted(mounts, old)
    victims = mounts.make_room("b", 50)
    assert mounts.cancel(50, victims) == []
    assert (mounts.get("a"), old.state, mounts.nbytes) == (old, MountState.ACTIVE, 80)


def test_what_was_to_go_and_has_lost_its_name_goes_all_the_same(mounts: Mounts) -> None:
    old = mount("a", 60)
    mounted(mounts, old)
    victims = mounts.make_room("b", 50)
    mounts.add(mount("a", 10), 0)
    assert mounts.cancel(50, victims) == [old]


class Life(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.mounts = Mounts(MAX_BYTES, lambda: 0.0)
        self.used: list[Mount] = []
        self.leaving: list[Mount] = []
        self.pending: list[tuple[str, int, list[Mount]]] = []

    @rule(name=st.sampled_from("abcd"), nbytes=st.integers(1, 60))
    def make_room(self, name: str, nbytes: int) -> None:
        if name in [pending for pending, _, _ in self.pending]:
            return  # one load of a name at a time
        before = self.mounts.nbytes
        try:
            victims = self.mounts.make_room(name, nbytes)
        except AdapterCapacity:
            assert self.mounts.nbytes == before
            return
        assert all(victim.is_idle and not victim.pinned for victim in victims)
        self.pending.append((name, nbytes, victims))

    @precondition(lambda self: self.pending)
    @rule(succeeds=st.booleans(), pinned=st.booleans())
    def settle(self, succeeds: bool, pinned: bool) -> None:
        name, nbytes, victims = self.pending.pop(0)
        if not succeeds:
            self.leaving.extend(self.mounts.cancel(nbytes, victims))
            return
        for victim in victims:
            self.mounts.remove(victim)
        replaced = self.mounts.add(mount(name, nbytes, pinned=pinned), nbytes)
        if replaced is not None and replaced.is_idle:
            self.leaving.append(replaced)

    @rule(name=st.sampled_from("abcd"))
    def use(self, name: str) -> None:
        found = self.mounts.get(name)
        if found is not None and found.state is MountState.ACTIVE:
            self.mounts.use(found)
            self.used.append(found)

    @precondition(lambda self: self.used)
    @rule(place=st.integers(0, 100))
    def leave(self, place: int) -> None:
        found = self.used.pop(place % len(self.used))
        if self.mounts.leave(found):
            self.leaving.append(found)

    @precondition(lambda self: self.leaving)
    @rule()
    def forget(self) -> None:
        self.mounts.remove(self.leaving.pop(0))

    @invariant()
    def what_is_used_is_there(self) -> None:
        assert all(found in self.mounts._order for found in self.used)
        assert all(found.num_uses == self.used.count(found) for found in self.mounts._order)

    @invariant()
    def only_what_is_being_replaced_exceeds_the_bytes(self) -> None:
        names = [name for name, _, _ in self.pending]
        order = self.mounts._order
        going = sum(each.nbytes for each in order if each.state is not MountState.ACTIVE or each.name in names)
        assert self.mounts.nbytes - going <= MAX_BYTES


TestLife = Life.TestCase
