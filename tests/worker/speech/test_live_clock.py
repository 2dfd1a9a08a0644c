"""When interims are due, by the audio that came."""

from worker.speech.live_clock import Pace

SECOND = 16_000
INTERVAL = 3 * SECOND // 10


def test_the_first_is_due_at_once() -> None:
    assert Pace(INTERVAL).may_start(0)
    assert Pace(INTERVAL).may_tell(0)


def test_hearings_come_no_more_often_than_asked() -> None:
    pace = Pace(INTERVAL)
    pace.start(SECOND)
    pace.end(SECOND + 100)
    assert not pace.may_start(SECOND + INTERVAL - 1)
    assert pace.may_start(SECOND + INTERVAL)


def test_after_a_hearing_the_machine_rests_for_half_as_long() -> None:
    pace = Pace(INTERVAL)
    pace.start(0)
    pace.end(SECOND // 2)
    assert not pace.may_start(3 * SECOND // 4 - 1)
    assert pace.may_start(3 * SECOND // 4)


def test_after_a_slow_hearing_it_rests_much_longer() -> None:
    pace = Pace(INTERVAL)
    pace.start(0)
    pace.end(2 * SECOND)
    assert not pace.may_start(6 * SECOND - 1)
    assert pace.may_start(6 * SECOND)


def test_interims_are_told_no_more_often_than_asked_though_hearings_bunch_up() -> None:
    pace = Pace(INTERVAL)
    pace.tell(SECOND)
    assert not pace.may_tell(SECOND + INTERVAL - 1)
    assert pace.may_tell(SECOND + INTERVAL)
