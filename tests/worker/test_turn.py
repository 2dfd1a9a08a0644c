"""A worker's turn over its line; the gateway is the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.worker.ticking import Clock
from tests.worker.turning import (
    COMPANY,
    LEAVE,
    LIMIT_S,
    OTHERS,
    RELEASE,
    STAY,
    WANT,
    WANTED,
    GatewaySide,
    shared_turn,
)
from worker.claim import Claim
from worker.turn import COMPANY_S, LONGEST_TICK_S, Alone, SharedTurn


def steady() -> Claim:
    return Claim.STEADY


def bulk() -> Claim:
    return Claim.BULK


class Table:
    """A turn, its gateway, a clock, and what the turn did."""

    def __init__(self) -> None:
        self.side = GatewaySide()
        self.clock = Clock()
        self.woken = threading.Semaphore(0)
        self.allowance_s = 0.0
        self.turn, self.synchronized = shared_turn(self.side, clock=self.clock, allowance_s=lambda: self.allowance_s)
        self.turn.begin(self.woken.release)

    def has_turn(self, lease: int = 1, detail: int = 0) -> SharedTurn:
        """Ask for a turn and get it."""
        assert not self.turn.take(steady)
        assert self.side.next()[:2] == (WANT, Claim.STEADY)
        self.side.grant(lease, detail)
        assert self.woken.acquire(timeout=LIMIT_S)
        assert self.turn.take(steady)
        return self.turn

    def is_recalled(self, lease: int = 1) -> None:
        """Want the turn back from somebody who computes, and wait until that is known."""
        self.side.recall(lease)
        assert self.side.next()[0] == STAY


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table()
    yield table
    table.turn.close()
    table.side.close()


def test_who_is_alone_says_nothing_after_its_first_turn(table: Table):
    turn = table.has_turn()
    for _ in range(1000):
        table.clock.now += 0.01
        assert turn.take(steady)
        assert turn.burst_s is None
        turn.give(steady)
    turn.rest()
    assert turn.take(steady)
    assert table.side.is_silent()
    assert len(table.synchronized) == 1  # as it came to rest


def test_a_turn_is_asked_for_once(table: Table):
    assert not table.turn.take(bulk)
    assert not table.turn.take(bulk)
    assert table.side.next()[:2] == (WANT, Claim.BULK)
    assert table.side.is_silent()


def test_who_waits_with_more_urgent_work_says_so(table: Table):
    assert not table.turn.take(bulk)
    assert not table.turn.take(steady)
    assert not table.turn.take(bulk)
    assert [table.side.next()[1] for _ in range(2)] == [Claim.BULK, Claim.STEADY]
    assert table.side.is_silent()


def test_a_turn_that_others_wait_for_lasts_a_burst_and_is_given_back_synchronized(table: Table):
    turn = table.has_turn(7, WANTED)
    assert turn.burst_s == pytest.approx(0.02)
    table.clock.now += 0.006
    turn.give(bulk)  # another such tick fits
    assert turn.take(bulk)
    assert turn.burst_s == pytest.approx(0.014)
    table.clock.now += 0.008
    assert (table.synchronized, table.side.is_silent()) == ([], True)
    turn.give(bulk)  # another such tick would end at 22 ms
    assert len(table.synchronized) == 1
    assert table.side.next()[:3] == (RELEASE, 1 + Claim.BULK, 7)
    assert not turn.take(bulk)  # asked for already
    assert table.side.is_silent()


def test_a_turn_that_becomes_wanted_while_it_is_used_ends_with_the_tick(table: Table):
    turn = table.has_turn()
    table.clock.now += 5.0
    table.is_recalled()
    assert table.synchronized == []
    turn.give(steady)
    assert len(table.synchronized) == 1
    assert table.side.next()[:3] == (RELEASE, 1 + Claim.STEADY, 1)


def test_a_tick_does_not_begin_in_a_turn_that_is_over(table: Table):
    turn = table.has_turn()
    turn.give(steady)
    table.clock.now += 5.0
    table.is_recalled()
    assert not turn.take(steady)
    assert len(table.synchronized) == 1
    assert table.side.next()[:3] == (RELEASE, 1 + Claim.STEADY, 1)


def test_a_turn_that_rests_is_given_back_without_the_engine(table: Table):
    turn = table.has_turn()
    turn.rest()
    table.side.recall(1)
    assert table.side.next()[:3] == (RELEASE, 0, 1)
    assert not turn.take(steady)
    assert table.side.next()[0] == WANT


def test_a_wanted_turn_is_given_back_when_there_is_nothing_to_do(table: Table):
    turn = table.has_turn(1, WANTED)
    turn.rest()
    assert table.side.next()[:3] == (RELEASE, 0, 1)
    assert len(table.synchronized) == 1


def test_who_is_asked_while_it_computes_tells_how_long_its_step_may_take(table: Table):
    table.has_turn()
    table.allowance_s = 128.0
    table.side.recall(1)
    assert table.side.next() == (STAY, 0, 1, 128_000_000)


def test_a_recall_of_an_earlier_turn_says_nothing(table: Table):
    turn = table.has_turn(1, WANTED)
    table.clock.now += 1.0
    turn.give(steady)
    table.side.next()
    table.side.recall(1)
    table.side.grant(2)
    assert table.woken.acquire(timeout=LIMIT_S)
    assert turn.take(steady)
    table.clock.now += 1.0
    turn.give(steady)
    assert table.side.is_silent()


def test_ticks_stay_short_for_a_while_after_others_wanted_the_turn(table: Table):
    turn = table.has_turn(1, COMPANY)
    assert turn.burst_s == pytest.approx(0.02)
    table.clock.now += COMPANY_S
    assert turn.burst_s is None


def test_ticks_are_not_very_long_where_others_may_come(table: Table):
    turn = table.has_turn(1, OTHERS)
    assert turn.burst_s == LONGEST_TICK_S
    turn.rest()
    assert turn.take(steady)
    assert turn.burst_s == LONGEST_TICK_S


def test_times_are_counted(table: Table):
    assert not table.turn.take(steady)
    table.clock.now += 0.25
    assert table.turn.stats.wait_us_total == 250_000
    table.side.grant(1)
    assert table.woken.acquire(timeout=LIMIT_S)
    table.turn.take(steady)
    table.clock.now += 0.5
    table.turn.give(steady)
    table.turn.rest()
    table.clock.now += 1.0
    stats = table.turn.stats
    assert (stats.wait_us_total, stats.held_us_total) == (250_000, 500_000)
    assert stats.waits is not None
    assert (stats.waits.name, sum(stats.waits.counts)) == ("turn_wait", 1)


def test_a_worker_that_ends_gives_everything_back(table: Table):
    table.has_turn()
    table.turn.close()
    assert len(table.synchronized) == 1
    assert table.side.next()[0] == LEAVE
    assert table.side.next()[0] == 0


def test_a_worker_whose_gateway_says_nothing_waits_on(table: Table):
    assert not table.turn.take(steady)
    table.clock.now += 3600.0
    assert not table.turn.take(steady)
    table.side.close()
    wait_until(lambda: not table.turn._watcher.is_alive())
    assert not table.turn.take(steady)


def test_a_worker_that_shares_with_nobody_needs_no_turn():
    turn = Alone()
    assert turn.take(steady)
    assert (turn.burst_s, turn.stats.wait_us_total) == (None, 0)
