"""Calls a minute, and calls that are open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import allowance
from gateway.allowance import Allowance
from gateway.caller_errors import RateLimited
from gateway.principal import CallerLimits, Principal


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def caller(name: str = "ci", rate: int | None = None, streams: int | None = None) -> Principal:
    return Principal(name, name, frozenset(), limits=CallerLimits(rate, streams))


def test_a_minutes_calls_may_come_at_once_and_no_more() -> None:
    counted = Allowance(Clock())
    for _ in range(6):
        counted.take_call(caller(rate=6))
    with pytest.raises(RateLimited) as caught:
        counted.take_call(caller(rate=6))
    assert (caught.value.limit, caught.value.most, caught.value.retry_after_s) == ("rate", 6, 10.0)


def test_the_time_that_is_told_is_when_the_next_call_is_due() -> None:
    clock = Clock()
    counted = Allowance(clock)
    counted.take_call(caller(rate=1))
    with pytest.raises(RateLimited) as caught:
        counted.take_call(caller(rate=1))
    clock.now_s += caught.value.retry_after_s
    counted.take_call(caller(rate=1))


def test_one_callers_calls_are_not_anothers() -> None:
    counted = Allowance(Clock())
    counted.take_call(caller("a", rate=1))
    counted.take_call(caller("b", rate=1))
    with pytest.raises(RateLimited):
        counted.take_call(caller("a", rate=1))


def test_without_a_limit_nothing_is_counted() -> None:
    counted = Allowance(Clock())
    for _ in range(1000):
        counted.take_call(caller())
        counted.open_stream(caller())


def test_a_limit_that_was_lowered_holds_at_once() -> None:
    counted = Allowance(Clock())
    counted.take_call(caller(rate=100))
    counted.take_call(caller(rate=1))
    with pytest.raises(RateLimited):
        counted.take_call(caller(rate=1))


def test_a_call_that_ended_makes_room_for_another() -> None:
    counted = Allowance(Clock())
    one = caller(streams=2)
    counted.open_stream(one)
    counted.open_stream(one)
    with pytest.raises(RateLimited) as caught:
        counted.open_stream(one)
    assert (caught.value.limit, caught.value.most) == ("streams", 2)
    counted.close_stream(one)
    counted.open_stream(one)


def test_callers_that_are_quiet_for_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST_KEPT", 2)
    counted = Allowance(Clock())
    for name in ("a", "b", "a", "c"):
        counted.take_call(caller(name, rate=2))
    with pytest.raises(RateLimited):
        counted.take_call(caller("a", rate=2))
    counted.take_call(caller("b", rate=2))


@given(rate=st.integers(1, 1000), pauses_s=st.lists(st.floats(0, 30), min_size=1, max_size=200))
def test_over_any_time_no_caller_has_more_than_its_rate_and_one_burst(rate: int, pauses_s: list[float]) -> None:
    clock = Clock()
    counted = Allowance(clock)
    taken = 0
    pauses: list[float] = []
    for pause_s in pauses_s:
        clock.now_s += pause_s
        try:
            counted.take_call(caller(rate=rate))
        except RateLimited as error:
            pauses.append(error.retry_after_s * rate)
        else:
            taken += 1
    assert all(0 < pause <= 60 + 1e-6 for pause in pauses)
    assert taken <= rate + sum(pauses_s) * rate / 60 + 1e-6
