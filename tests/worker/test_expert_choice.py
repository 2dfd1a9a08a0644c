"""Where experts are to lie, by what there is."""

from dataclasses import replace
from typing import Any

import pytest

from models.checkpoint.fit import ExpertNeeds
from models.checkpoint.slab_sizes import SlabSizes
from models.experts.options import ExpertsMode
from worker.errors import ModelLoadFailed
from worker.expert_choice import ExpertsChoice, ExpertsWish, choose_experts

# All 1,000 bytes, of which 100 are converted; in slabs 50 at least, and 1,010 with room for all.
NEEDS = ExpertNeeds(1000, 100, SlabSizes(50, 1010))
RESIDENT, MAPPED, SLAB = ExpertsMode.RESIDENT, ExpertsMode.MAPPED, ExpertsMode.SLAB


def chosen(room: int | None, *, pack: bool = False, needs: ExpertNeeds = NEEDS, **settings: Any) -> ExpertsChoice:
    return choose_experts(ExpertsWish.of(settings), needs, room, has_pack=pack)


@pytest.mark.parametrize(
    ("room", "pack", "budget", "choice"),
    [
        (None, False, None, ExpertsChoice(RESIDENT, 1000)),
        (1000, True, None, ExpertsChoice(RESIDENT, 1000)),
        (999, True, None, ExpertsChoice(SLAB, 999, 999)),
        (999, False, None, ExpertsChoice(SLAB, 999, 999)),
        (50, True, None, ExpertsChoice(SLAB, 50, 50)),
        (49, True, None, ExpertsChoice(MAPPED, 100)),
        (-5, True, None, ExpertsChoice(MAPPED, 100)),
        (-5, False, None, ExpertsChoice(SLAB, 50, 50)),
        (-5, True, 50, ExpertsChoice(SLAB, 50, 50)),
        (5000, True, 1000, ExpertsChoice(RESIDENT, 1000)),
        (5000, True, 400, ExpertsChoice(SLAB, 400, 400)),
        (300, True, 400, ExpertsChoice(SLAB, 400, 400)),
    ],
)
def test_what_fits_is_chosen_where_nothing_is_said(
    room: int | None, pack: bool, budget: int | None, choice: ExpertsChoice
) -> None:
    assert chosen(room, pack=pack, expert_budget=budget) == choice


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({"experts": "resident"}, ExpertsChoice(RESIDENT, 1000)),
        ({"experts": "mapped"}, ExpertsChoice(MAPPED, 100)),
        ({"experts": "slab"}, ExpertsChoice(SLAB, 300, 300)),
        ({"experts": "slab", "expert_budget": 60}, ExpertsChoice(SLAB, 60, 60)),
        ({"experts": "slab", "expert_budget": 9000}, ExpertsChoice(SLAB, 1010, 1010)),
    ],
)
def test_what_is_asked_for_is_chosen(settings: dict[str, Any], choice: ExpertsChoice) -> None:
    assert chosen(300, pack=True, **settings) == choice


def test_slabs_without_any_bound_have_room_for_all() -> None:
    assert chosen(None, experts="slab") == ExpertsChoice(SLAB, 1010, 1010)


@pytest.mark.parametrize(
    ("settings", "option", "words"),
    [
        (
            {"experts": "mapped"},
            "experts",
            "no pack that can be mapped here; .* MODEL makes one, and pomona load MODEL --experts auto",
        ),
        (
            {"experts": "slab", "expert_budget": 49},
            "expert_budget",
            "expert_budget is 49 bytes, which is too small: a step needs 50 bytes",
        ),
        (
            {"expert_budget": 49},
            "expert_budget",
            "expert_budget is 49 bytes, which is too small: a step needs 50 bytes",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(settings: dict[str, Any], option: str, words: str) -> None:
    with pytest.raises(ModelLoadFailed, match=words) as failure:
        chosen(300, **settings)
    assert failure.value.metadata["option"] == option


def test_a_budget_that_is_too_small_is_not_left_aside_for_a_pack() -> None:
    with pytest.raises(ModelLoadFailed, match="expert_budget is 49 bytes, which is too small"):
        chosen(5000, pack=True, expert_budget=49)


@pytest.mark.parametrize("settings", [{"experts": "slab"}, {}])
def test_slabs_that_cannot_hold_the_experts_are_refused(settings: dict[str, Any]) -> None:
    needs = replace(NEEDS, slabs=None)
    with pytest.raises(ModelLoadFailed, match="which slabs cannot hold") as failure:
        chosen(999, needs=needs, **settings)
    assert failure.value.metadata["option"] == "experts"
    assert chosen(999, needs=needs, pack=True).mode is MAPPED
    assert chosen(1000, needs=needs).mode is RESIDENT


@pytest.mark.parametrize("name", ["experts", "expert_budget"])
def test_a_model_without_experts_is_asked_for_none(name: str) -> None:
    ExpertsWish.of({}).check_none("it has none")
    with pytest.raises(ModelLoadFailed, match=f"{name} is set, and it has none"):
        ExpertsWish.of({name: {"experts": "slab", "expert_budget": 5}[name]}).check_none("it has none")


def test_the_least_budget_is_told_for_programs() -> None:
    with pytest.raises(ModelLoadFailed) as failure:
        chosen(300, experts="slab", expert_budget=49)
    assert failure.value.metadata["least_bytes"] == "50"


@pytest.mark.parametrize(
    ("room", "pack", "settings", "reason"),
    [
        (5000, False, {}, "all fit"),
        (300, True, {}, "not all fit, and slabs do"),
        (49, True, {}, "neither all nor slabs fit, and there is a pack"),
        (49, False, {}, "neither all nor slabs fit, and no pack can be mapped"),
        (300, True, {"expert_budget": 400}, "not all fit, and a budget bounds them"),
        (300, True, {"experts": "slab"}, "asked for"),
    ],
)
def test_why_experts_lie_where_they_do_is_told(room: int, pack: bool, settings: dict[str, Any], reason: str) -> None:
    assert chosen(room, pack=pack, **settings).reason == reason
