"""Which options a load has, by what was chosen before and what is configured."""

from pathlib import Path

import pytest

from gateway.catalogue import CatalogueModel
from gateway.experts import ExpertsWord
from gateway.load_options import following, in_effect
from gateway.model_status import LoadOptions

PLAIN = CatalogueModel("m", Path("/m"))
SLABS = CatalogueModel("m", Path("/m"), experts="slab", expert_budget=800)


Experts = tuple[ExpertsWord | None, int | None]


def of_experts(options: LoadOptions) -> Experts:
    return options.experts, options.expert_budget


def test_what_a_load_leaves_open_stays() -> None:
    last = LoadOptions(512, 2, "8", "slab", 500)
    assert following(last, LoadOptions(), PLAIN) == last
    assert following(last, LoadOptions(context_tokens=1024), PLAIN) == LoadOptions(1024, 2, "8", "slab", 500)


@pytest.mark.parametrize(
    ("last", "asked", "kept"),
    [
        (("slab", 500), ("slab", None), ("slab", 500)),
        (("slab", 500), (None, 700), ("slab", 700)),
        (("slab", 500), ("auto", None), ("auto", None)),
        (("slab", 500), ("auto", 700), ("auto", 700)),
        (("slab", 500), ("mapped", None), ("mapped", None)),
        ((None, 500), ("auto", None), ("auto", 500)),
        ((None, 500), ("resident", None), ("resident", None)),
    ],
)
def test_a_budget_goes_when_the_mode_changes(last: Experts, asked: Experts, kept: Experts) -> None:
    before, now = (LoadOptions(experts=experts, expert_budget=budget) for experts, budget in (last, asked))
    assert of_experts(following(before, now, PLAIN)) == kept


@pytest.mark.parametrize(
    ("chosen", "held"),
    [
        (LoadOptions(), ("slab", 800)),
        (LoadOptions(expert_budget=500), ("slab", 500)),
        (LoadOptions(experts="auto"), ("auto", 800)),
        (LoadOptions(experts="resident"), ("resident", None)),
    ],
)
def test_what_is_configured_holds_where_nothing_was_chosen(chosen: LoadOptions, held: Experts) -> None:
    assert of_experts(in_effect(chosen, SLABS)) == held


def test_without_any_choice_it_is_what_fits() -> None:
    assert in_effect(LoadOptions(), LoadOptions()) == LoadOptions(experts="auto")
