"""Whether there is room for a model: now, and once others are gone."""

import pytest
from pomona.v1 import model_pb2

from gateway.estimate import BUDGET, TOLD, Held, add_room, told_settings
from gateway.memory import MachineMemory

NEEDED = 100


def room(
    budget: int, free: int | None = None, own: int = 0, others: tuple[Held, ...] = ()
) -> tuple[bool, bool, list[str]]:
    response = model_pb2.EstimateModelResponse(estimate=model_pb2.MemoryEstimate(total_bytes=NEEDED))
    memory = MachineMemory(round(budget / 0.75), free)
    assert memory.budget_bytes == budget
    add_room(response, memory, own, others)
    return response.fits_now, response.fits_after_eviction, list(response.would_evict)


@pytest.mark.parametrize(
    ("budget", "free", "own", "fits"),
    [
        (102, None, 0, True),
        (99, None, 0, False),
        (300, 100, 0, True),
        (300, 99, 0, False),
        (300, 60, 40, True),
        (99, 900, 900, False),
    ],
)
def test_it_must_fit_the_budget_and_what_is_free(budget: int, free: int | None, own: int, fits: bool) -> None:
    assert room(budget, free, own) == (fits, fits, [])


def test_what_others_hold_is_not_to_be_had() -> None:
    assert room(150, others=(Held("b", 51, is_idle=False),)) == (False, False, [])
    assert room(150, others=(Held("b", 50, is_idle=False),)) == (True, True, [])


def test_idle_models_would_go_the_longest_unused_first_and_no_more_than_needed() -> None:
    others = (
        Held("new", 60, True, 30.0),
        Held("old", 30, True, 10.0),
        Held("busy", 60, False, 1.0),
        Held("mid", 40, True, 20.0),
    )
    assert room(231, others=others) == (False, True, ["old", "mid"])


def test_evicting_frees_memory_of_the_machine_too() -> None:
    assert room(300, 40, others=(Held("b", 60, True),)) == (False, True, ["b"])
    assert room(300, 39, others=(Held("b", 60, True),)) == (False, False, [])


def test_nobody_is_named_where_evicting_all_does_not_help() -> None:
    assert room(99, others=(Held("b", 60, True),)) == (False, False, [])


def test_a_one_shot_is_told_what_decides_the_size_and_nothing_else() -> None:
    settings = {"model": "m", "path": "fast", "kv_scheme": "8", "kv_bytes": None, "cpu_kernels": False, "secret": "s"}
    assert told_settings(settings, 7) == {"path": "fast", "kv_scheme": "8", "cpu_kernels": False, "budget_bytes": 7}


def test_the_one_shot_takes_every_setting_that_it_is_told() -> None:
    from worker import fit

    assert (set(TOLD), BUDGET) == (set(fit.SETTINGS), fit.BUDGET)
