import random

import pytest

from gateway.back_off import BackOff, BackOffLimits

PLAIN = BackOffLimits(jitter=0.0)


def back_off(limits: BackOffLimits = PLAIN, seed: int = 1) -> BackOff:
    return BackOff(limits, random.Random(seed))


def test_pauses_double_up_to_the_longest() -> None:
    one = back_off(BackOffLimits(jitter=0.0, budget_crashes=100))
    assert [one.crashed(0.0, 0.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_fifth_crash_within_ten_minutes_is_the_last() -> None:
    one = back_off()
    pauses = [one.crashed(second, 0.0) for second in (0.0, 100.0, 200.0, 300.0, 599.0)]
    assert pauses[-1] is None
    assert None not in pauses[:-1]


def test_a_crash_is_forgotten_after_ten_minutes() -> None:
    one = back_off()
    pauses = [one.crashed(second, 0.0) for second in (0.0, 100.0, 200.0, 300.0, 600.0)]
    assert None not in pauses


def test_a_good_run_lets_the_pauses_begin_anew_but_keeps_the_budget() -> None:
    one = back_off()
    pauses = [one.crashed(0.0, served_s) for served_s in (0.0, 0.0, 60.0, 59.0, 60.0)]
    assert pauses == [0.5, 1.0, 0.5, 1.0, None]


def test_a_crash_of_a_counted_incident_pauses_but_does_not_count() -> None:
    one = back_off(BackOffLimits(jitter=0.0, budget_crashes=1))
    assert one.crashed(0.0, 0.0, is_counted=False) == 0.5
    assert one.crashed(100.0, 60.0, is_counted=False) == 0.5


def test_a_crash_after_a_crash_counts_whatever_it_belongs_to() -> None:
    one = back_off()
    pauses = [one.crashed(0.0, 0.0, is_counted=False) for _ in range(6)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, None]


def test_a_reset_forgets_crashes_and_pauses() -> None:
    one = back_off()
    for _ in range(5):
        one.crashed(0.0, 0.0)
    one.reset()
    assert (one.attempt, one.crashed(0.0, 0.0)) == (0, 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_jitter_stays_within_a_fifth_and_comes_from_the_seed(seed: int) -> None:
    pause_s = back_off(BackOffLimits(), seed).crashed(0.0, 0.0)
    assert pause_s is not None
    assert 0.4 <= pause_s <= 0.6
    assert pause_s != 0.5
    assert pause_s == back_off(BackOffLimits(), seed).crashed(0.0, 0.0)
