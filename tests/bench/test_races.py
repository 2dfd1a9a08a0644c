"""The races of `bench/races.py`, short: each kind finds its defect, and nothing where there is none."""

import pytest

from bench.faults.outcome import problems_of
from bench.races import DEFECTIVE_ROUNDS, KINDS, run

SEED = 20261130
ROUNDS = 40


@pytest.mark.parametrize("title", KINDS)
def test_a_race_loses_nothing_and_has_an_end(title: str) -> None:
    assert problems_of({title: run(KINDS[title], ROUNDS, SEED)}, []) == []


@pytest.mark.parametrize("title", KINDS)
def test_a_race_finds_what_is_wrong_with_the_keeper_of_workers(title: str) -> None:
    found = run(KINDS[title], DEFECTIVE_ROUNDS, SEED, KINDS[title].defect)
    assert problems_of({title: found}, [title]) == []
