"""The rules of turns: never two at once, nobody starves, who is urgent goes first, and time is shared evenly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.turns import (
    CREDIT_S,
    DEBT_S,
    HEAD_START_S,
    MAX_ALLOWANCE_S,
    REMIND_S,
    Claim,
    Grant,
    Member,
    Order,
    Recall,
    Stuck,
    TurnError,
    TurnLimits,
    Turns,
)

LIMITS = TurnLimits(burst_s=0.02, hold_s=10.0)


def grants(orders: Iterable[Order]) -> list[str]:
    return [order.member.name for order in orders if isinstance(order, Grant)]


def lease_of(orders: Iterable[Order]) -> int:
    (grant,) = orders
    assert isinstance(grant, Grant)
    return grant.lease


@pytest.fixture
def turns() -> Turns:
    return Turns(LIMITS)


def test_who_is_alone_has_its_turn_at_once_and_is_not_asked_for_it(turns: Turns):
    member = turns.join("a")
    (grant,) = turns.want(member, Claim.BULK, 1.0)
    assert grant == Grant(member, 1, is_wanted=False, has_company=False)
    assert turns.look(1e6) == []
    assert turns.next_look_s() == math.inf


def test_a_second_waits_until_the_first_has_given_back(turns: Turns):
    first, second = turns.join("first"), turns.join("second")
    lease = lease_of(turns.want(first, Claim.BULK, 0.0))
    assert turns.want(second, Claim.LIVE, 1.0) == [Recall(first, lease)]
    assert turns.holder is first
    (grant,) = turns.release(first, lease, 1.5)
    assert grant == Grant(second, 2, is_wanted=False, has_company=True, has_others=True)


def test_who_has_a_turn_knows_whether_there_are_others(turns: Turns):
    first, second = turns.join("first"), turns.join("second")
    (grant,) = turns.want(first, Claim.BULK, 10.0)
    assert grant == Grant(first, 1, is_wanted=False, has_company=False, has_others=True)
    turns.release(first, 1, 11.0)
    turns.leave(second, 11.0)
    assert turns.want(first, Claim.BULK, 20.0) == [Grant(first, 2, is_wanted=False, has_company=False)]


def test_who_is_granted_while_others_wait_knows_that_they_do(turns: Turns):
    first, second, third = (turns.join(name) for name in ("first", "second", "third"))
    lease = lease_of(turns.want(first, Claim.BULK, 0.0))
    turns.want(second, Claim.BULK, 0.1)
    assert turns.want(third, Claim.BULK, 0.2) == []  # asked for already
    (grant,) = turns.release(first, lease, 0.3)
    assert isinstance(grant, Grant)
    assert (grant.member, grant.is_wanted) == (second, True)


@pytest.mark.parametrize(("urgent", "other"), [(Claim.LIVE, Claim.BULK), (Claim.STEADY, Claim.BULK), (0, 1)])
def test_who_is_more_urgent_goes_first_though_it_came_later(turns: Turns, urgent: int, other: int):
    holder, early, late = (turns.join(name) for name in ("holder", "early", "late"))
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(early, Claim(other), 0.001)
    turns.want(late, Claim(urgent), 0.002)
    assert grants(turns.release(holder, lease, 0.003)) == ["late"]


def test_who_waits_may_become_more_urgent(turns: Turns):
    holder, early, late = (turns.join(name) for name in ("holder", "early", "late"))
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(early, Claim.BULK, 0.001)
    turns.want(late, Claim.BULK, 0.002)
    assert turns.want(late, Claim.LIVE, 0.003) == []
    assert grants(turns.release(holder, lease, 0.004)) == ["late"]


def test_a_want_that_crossed_with_its_grant_changes_nothing(turns: Turns):
    member = turns.join("a")
    lease = lease_of(turns.want(member, Claim.BULK, 0.0))
    assert turns.want(member, Claim.LIVE, 0.1) == []
    assert turns.release(member, lease, 0.2) == []
    assert turns.holder is None


def test_giving_back_what_one_does_not_hold_is_refused(turns: Turns):
    member, other = turns.join("a"), turns.join("b")
    lease = lease_of(turns.want(member, Claim.BULK, 0.0))
    for who, which in ((member, lease + 1), (other, lease)):
        with pytest.raises(TurnError):
            turns.release(who, which, 0.1)
    assert turns.holder is member


def test_time_is_shared_evenly_however_long_the_turns_of_each_are(turns: Turns):
    held = Held(turns, {"long": 0.2, "short": 0.01})
    held.run(60.0)
    assert held.seconds["long"] == pytest.approx(held.seconds["short"], rel=0.02)


def test_time_is_shared_evenly_between_those_who_are_urgent_and_those_who_are_not(turns: Turns):
    held = Held(turns, {"a": 0.02, "b": 0.02}, {"a": Claim.LIVE, "b": Claim.BULK})
    held.run(60.0)
    assert held.seconds["a"] == pytest.approx(held.seconds["b"], rel=0.02)


def served_in_a_row_s(held: Held, name: str) -> float:
    """Return how long somebody who begins to want the device holds it before another has it again."""
    member, served_s = held.join(name, 0.02), 0.0
    while held.turns.holder is not member:
        held.turn()
    while held.turns.holder is member:
        held.turn()
        served_s += 0.02
    return served_s


def test_who_was_away_does_not_save_up(turns: Turns):
    held = Held(turns, {"a": 0.02, "b": 0.02})
    held.run(60.0)
    assert served_in_a_row_s(held, "away") <= CREDIT_S + 2 * LIMITS.burst_s


@pytest.mark.parametrize("claim", Claim)
def test_who_is_urgent_is_ahead_by_its_head_start_once(turns: Turns, claim: Claim):
    held = Held(turns, {"bulk": 0.02}, {"urgent": claim})
    held.run(60.0)
    ahead_s = CREDIT_S + HEAD_START_S[claim]
    assert served_in_a_row_s(held, "urgent") == pytest.approx(ahead_s, abs=2 * LIMITS.burst_s)


def test_who_was_alone_owes_nothing_to_who_comes(turns: Turns):
    alone, late = turns.join("alone"), turns.join("late")
    turns.want(alone, Claim.BULK, 0.0)
    turns.want(late, Claim.BULK, 1000.0)
    turns.release(alone, alone.lease or 0, 1000.0, Claim.BULK)
    now_s = 1000.0
    while turns.holder is late:
        now_s += 0.02
        turns.release(late, late.lease or 0, now_s, Claim.BULK)
    assert now_s - 1000.0 <= CREDIT_S + 2 * LIMITS.burst_s


def test_who_wants_little_now_and_then_always_goes_before_who_wants_much(turns: Turns):
    held = Held(turns, {"bulk": 0.02})
    speech = turns.join("speech")
    for _ in range(100):  # 50 ms in each 300
        held.run(0.25)
        turns.want(speech, Claim.LIVE, held.now_s)
        held.turn()
        assert turns.holder is speech
        for is_last in (False, False, True):
            held.now_s += 0.016
            turns.release(speech, speech.lease or 0, held.now_s, None if is_last else Claim.LIVE)
            assert (turns.holder is speech) is not is_last


def test_time_in_which_a_turn_was_kept_and_not_used_does_not_count(turns: Turns):
    idle, busy = turns.join("idle"), turns.join("busy")
    lease = lease_of(turns.want(idle, Claim.BULK, 0.0))
    turns.want(busy, Claim.BULK, 99.99)
    assert grants(turns.release(idle, lease, 100.0, Claim.BULK, 0.01)) == ["busy"]
    assert grants(turns.release(busy, busy.lease or 0, 100.1, Claim.BULK)) == ["idle"]


def test_a_very_long_step_keeps_its_worker_from_its_next_turn_no_longer_than_the_debt(turns: Turns):
    slow, quick = turns.join("slow"), turns.join("quick")
    lease = lease_of(turns.want(slow, Claim.BULK, 0.0))
    turns.want(quick, Claim.BULK, 0.0)
    turns.release(slow, lease, 100.0, Claim.BULK)
    now_s = 100.0
    while turns.holder is quick:
        now_s += 0.02
        turns.release(quick, quick.lease or 0, now_s, Claim.BULK)
    assert DEBT_S <= now_s - 100.0 <= DEBT_S + CREDIT_S + 2 * LIMITS.burst_s


def test_a_holder_that_does_not_give_back_is_reminded_and_then_stuck_once(turns: Turns):
    holder, other = turns.join("holder"), turns.join("other")
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(other, Claim.BULK, 5.0)
    assert turns.next_look_s() == 5.0 + REMIND_S
    assert turns.look(5.0 + REMIND_S) == [Recall(holder, lease)]
    assert turns.look(5.0 + LIMITS.hold_s - 0.01) == [Recall(holder, lease)]
    assert turns.look(5.0 + LIMITS.hold_s) == [Stuck(holder)]
    assert turns.look(1e6) == []
    assert turns.next_look_s() == math.inf


def test_the_turn_of_a_stuck_holder_is_free_only_when_it_is_gone(turns: Turns):
    holder, other = turns.join("holder"), turns.join("other")
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(other, Claim.BULK, 0.0)
    turns.look(LIMITS.hold_s)
    assert turns.release(holder, lease, 11.0) == []  # too late: it is being ended
    assert turns.holder is holder
    assert grants(turns.leave(holder, 12.0)) == ["other"]
    assert turns.leave(holder, 12.1) == []


def test_a_declared_step_may_take_longer(turns: Turns):
    holder, other = turns.join("holder"), turns.join("other")
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(other, Claim.BULK, 0.0)
    turns.stay(holder, lease + 1, 1000.0)  # of an earlier turn
    turns.stay(holder, lease, 50.0)
    assert Stuck(holder) not in turns.look(LIMITS.hold_s + 49.9)
    assert turns.look(LIMITS.hold_s + 50.0) == [Stuck(holder)]


def test_what_may_be_declared_has_a_limit(turns: Turns):
    holder, other = turns.join("holder"), turns.join("other")
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(other, Claim.BULK, 0.0)
    turns.stay(holder, lease, 1e12)
    assert turns.look(LIMITS.hold_s + MAX_ALLOWANCE_S) == [Stuck(holder)]


def test_time_in_which_the_gateway_stood_still_is_forgiven(turns: Turns):
    holder, other = turns.join("holder"), turns.join("other")
    turns.want(holder, Claim.BULK, 0.0)
    turns.want(other, Claim.BULK, 0.0)
    turns.forgive(20.0)
    assert Stuck(holder) not in turns.look(25.0)


def test_who_is_out_gets_no_turn_and_holds_up_nobody(turns: Turns):
    holder, out, other = turns.join("holder"), turns.join("out"), turns.join("other")
    lease = lease_of(turns.want(holder, Claim.BULK, 0.0))
    turns.want(out, Claim.LIVE, 0.1)
    turns.want(other, Claim.BULK, 0.2)
    turns.exclude(out, 0.3)
    assert grants(turns.release(holder, lease, 0.4)) == ["other"]
    assert turns.want(out, Claim.LIVE, 0.5) == []


def test_a_holder_that_is_out_must_be_gone_within_the_limit(turns: Turns):
    holder = turns.join("holder")
    turns.want(holder, Claim.BULK, 0.0)
    turns.exclude(holder, 1.0)
    assert turns.look(1.0 + LIMITS.hold_s) == [Stuck(holder)]


@dataclass
class Held:
    """Members that always want, each with turns of its own length, and what they have held."""

    turns: Turns
    lengths_s: dict[str, float]
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    now_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.members = {name: self.turns.join(name) for name in self.lengths_s}
        self.seconds = dict.fromkeys(self.lengths_s, 0.0)
        for name in self.members:
            self._want(name)

    def _want(self, name: str) -> None:
        self.turns.want(self.members[name], self.claims.get(name, Claim.BULK), self.now_s)

    def join(self, name: str, length_s: float) -> Member:
        self.lengths_s[name] = length_s
        self.members[name], self.seconds[name] = self.turns.join(name), 0.0
        self._want(name)
        return self.members[name]

    def turn(self) -> float:
        holder = self.turns.holder
        assert holder is not None
        self.now_s += self.lengths_s[holder.name]
        self.seconds[holder.name] += self.lengths_s[holder.name]
        self.turns.release(holder, holder.lease or 0, self.now_s, self.claims.get(holder.name, Claim.BULK))
        return self.now_s

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.turn()


NAMES = "abcd"
EVENTS = st.one_of(
    st.tuples(st.just("want"), st.sampled_from(NAMES), st.sampled_from(list(Claim))),
    st.tuples(st.just("release"), st.just(""), st.just(Claim.BULK)),
    st.tuples(st.just("exclude"), st.sampled_from(NAMES), st.just(Claim.BULK)),
    st.tuples(st.just("leave"), st.sampled_from(NAMES), st.just(Claim.BULK)),
    st.tuples(st.just("look"), st.just(""), st.just(Claim.BULK)),
)


class History:
    """Plays events, and checks from the orders alone that nobody holds the device beside another."""

    def __init__(self) -> None:
        self.turns = Turns(LIMITS)
        self.now_s = 0.0
        self.members = {name: self.turns.join(name) for name in NAMES}
        self.holding: Member | None = None
        self.told_stuck: set[Member] = set()

    def play(self, what: str, name: str, claim: Claim) -> None:
        member = self.members.get(name)
        match what:
            case "want" if member is not None:
                self.take(self.turns.want(member, claim, self.now_s))
            case "release" if self.holding is not None and not self.holding.is_out:
                lease, member, self.holding = self.holding.lease, self.holding, None
                self.take(self.turns.release(member, lease or 0, self.now_s))
            case "exclude" if member is not None:
                self.take(self.turns.exclude(member, self.now_s))
            case "leave" if member is not None:
                self.holding = None if self.holding is member else self.holding
                self.take(self.turns.leave(member, self.now_s))
                self.members[name] = self.turns.join(name)  # its worker is started again
            case _:
                self.take(self.turns.look(self.now_s))

    def take(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Grant(member):
                    assert self.holding is None, "two hold the device"
                    assert not member.is_out
                    self.holding = member
                case Recall(member):
                    assert member is self.holding
                case Stuck(member):
                    assert member is self.holding
                    assert member not in self.told_stuck
                    self.told_stuck.add(member)
        waiting = [member for member in self.members.values() if member.waiting_since_s is not None]
        assert self.turns.holder is self.holding
        assert not waiting or self.holding is not None, "somebody waits for nobody"


@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 3.0)), max_size=80))
@settings(max_examples=300, deadline=None)
def test_never_two_hold_the_device_and_nobody_waits_for_nobody(events: list[tuple[tuple[str, str, Claim], float]]):
    history = History()
    for event, pause_s in events:
        history.now_s += pause_s
        history.play(*event)


WAIT_LIMIT_S = 3 * (DEBT_S + CREDIT_S + max(HEAD_START_S) + 2 * LIMITS.burst_s) + LIMITS.burst_s


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(list(Claim)), st.floats(0.001, 0.02)), max_size=400),
)
@settings(max_examples=150, deadline=None)
def test_nobody_waits_longer_than_what_the_others_may_be_ahead(steps: list[tuple[str, Claim, float]]):
    turns = Turns(LIMITS)
    members = {name: turns.join(name) for name in NAMES}
    now_s = 0.0
    for name, claim, length_s in steps:
        turns.want(members[name], claim, now_s)
        waits = [now_s - member.waiting_since_s for member in members.values() if member.waiting_since_s is not None]
        assert max(waits, default=0.0) <= WAIT_LIMIT_S
        if (holder := turns.holder) is not None and holder.lease is not None:
            now_s += length_s
            turns.release(holder, holder.lease, now_s, claim if length_s > 0.01 else None)


def test_who_is_least_urgent_is_served_though_urgent_ones_never_stop(turns: Turns):
    held = Held(turns, dict.fromkeys(("a", "b", "c"), 0.02), dict.fromkeys(("a", "b", "c"), Claim.LIVE))
    patient = turns.join("patient")
    turns.want(patient, Claim.BULK, held.now_s)
    while turns.holder is not patient:
        held.turn()
    assert held.now_s < WAIT_LIMIT_S
