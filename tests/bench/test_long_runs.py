"""The long runs under faults, short: gateways without a defect pass, and each seeded defect is caught."""

import random

import pytest

from bench import cancels, chaos, cycles
from bench.faults.outcome import problems_of
from bench.load.verdicts import MIB, Verdict

SEED = 20261130


def broken(found: list[Verdict]) -> list[str]:
    return [verdict.check for verdict in found if not verdict.holds]


def test_cycles_of_loads_leave_nothing() -> None:
    assert broken(cycles.run(6, random.Random(SEED))) == []


def test_a_gateway_that_leaks_with_each_unload_is_found() -> None:
    found = broken(cycles.run(8, random.Random(SEED), (f"leak:{8 * MIB}",)))
    assert any("memory" in check for check in found)
    assert any("threads" in check for check in found)


def test_cancelled_streams_leave_nothing() -> None:
    assert broken(cancels.run(300, SEED)) == []


def test_a_gateway_that_keeps_cancelled_streams_is_found() -> None:
    assert any("memory" in check for check in broken(cancels.run(300, SEED, (f"keep:{MIB // 8}",))))


def test_chaos_finds_nothing_wrong() -> None:
    found, _ = chaos.run(chaos.Plan(500, SEED, pause_s=0.3))
    assert problems_of({"chaos": [one for one in found if "second" not in one.check]}, []) == []


def test_a_gateway_that_sends_calls_astray_is_found() -> None:
    found, _ = chaos.run(chaos.Plan(300, SEED, pause_s=5.0), ("stray:20",))
    assert "no answer is another model's or request's" in broken(found)


@pytest.mark.parametrize("defect", chaos.WORKER_DEFECTS)
def test_a_worker_that_answers_wrongly_is_found(defect: str) -> None:
    found, _ = chaos.run(chaos.Plan(300, SEED, pause_s=5.0), (), {"defect": defect, "every": 5})
    assert "every answer keeps the contract" in broken(found)
