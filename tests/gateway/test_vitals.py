from collections.abc import Iterable
from dataclasses import replace

from gateway.vitals import Beat, Verdict, VitalLimits, Vitals

LIMITS = VitalLimits()
READY = Beat(is_ready=True)


def verdict_after(vitals: Vitals, from_s: float, to_s: float) -> Verdict:
    """Ask twice a second, as a supervisor does, and return the last answer."""
    verdict = Verdict.FINE
    for half in range(round(from_s * 2), round(to_s * 2) + 1):
        verdict = vitals.judge(half / 2)
    return verdict


def ready(at_s: float = 0.0, beat: Beat = READY) -> Vitals:
    vitals = Vitals(LIMITS, at_s)
    vitals.beat(beat, at_s)
    return vitals


def test_a_load_without_any_report_stalls_after_its_limit() -> None:
    assert verdict_after(Vitals(LIMITS, 0.0), 0, 30) is Verdict.FINE
    assert verdict_after(Vitals(LIMITS, 0.0), 0, 30.5) is Verdict.LOAD_STALLED


def test_a_load_that_moves_may_take_as_long_as_it_wants() -> None:
    vitals = Vitals(LIMITS, 0.0)
    for second in range(0, 1000, 20):
        vitals.beat(Beat(load=("weights", second)), second)
        assert verdict_after(vitals, second, second + 20) is Verdict.FINE


def test_reports_without_progress_do_not_keep_a_load_alive() -> None:
    vitals = Vitals(LIMITS, 0.0)
    for second in range(31):
        vitals.beat(Beat(load=("weights", 7)), second)
        verdict_after(vitals, second, second + 0.5)
    assert verdict_after(vitals, 31, 31) is Verdict.LOAD_STALLED


def test_missed_reports_make_a_worker_suspect_and_then_lost() -> None:
    vitals = ready()
    assert verdict_after(vitals, 0, 3) is Verdict.FINE
    assert verdict_after(vitals, 3, 3.5) is Verdict.SUSPECT
    assert verdict_after(vitals, 4, 10) is Verdict.SUSPECT
    assert verdict_after(vitals, 10, 10.5) is Verdict.LOST


def test_a_report_clears_the_suspicion() -> None:
    vitals = ready()
    assert verdict_after(vitals, 0, 5) is Verdict.SUSPECT
    vitals.beat(READY, 5.0)
    assert vitals.judge(5.0) is Verdict.FINE


def reports(beats: Iterable[Beat]) -> Verdict:
    vitals = ready()
    verdict = Verdict.FINE
    for second, beat in enumerate(beats):
        vitals.beat(beat, second)
        verdict = verdict_after(vitals, second, second + 0.5)
    return verdict


def test_ticks_that_stand_still_while_requests_run_are_a_stall() -> None:
    busy = replace(READY, running_requests=1, compute_ticks=9)
    assert reports([busy] * 60) is Verdict.FINE
    assert reports([busy] * 62) is Verdict.COMPUTE_STALLED


def test_a_step_of_many_tokens_may_take_longer() -> None:
    busy = replace(READY, running_requests=1, compute_ticks=9, step_tokens=400)
    assert reports([busy] * 160) is Verdict.FINE
    assert reports([busy] * 162) is Verdict.COMPUTE_STALLED


def test_an_idle_worker_need_not_compute() -> None:
    assert reports([READY] * 200) is Verdict.FINE


def test_ticks_that_move_are_no_stall() -> None:
    assert reports(replace(READY, running_requests=1, compute_ticks=n // 50) for n in range(200)) is Verdict.FINE


def test_a_stall_counts_from_when_work_came() -> None:
    beats = [READY] * 100 + [replace(READY, running_requests=1)] * 60
    assert reports(beats) is Verdict.FINE


def test_time_in_which_nobody_looked_is_not_held_against_the_worker() -> None:
    vitals = ready()
    vitals.judge(0.5)
    assert vitals.judge(60.0) is Verdict.FINE
    assert verdict_after(vitals, 60.5, 61.5) is Verdict.FINE
    assert verdict_after(vitals, 61.5, 62) is Verdict.SUSPECT
