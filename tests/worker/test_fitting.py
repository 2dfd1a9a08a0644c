"""With which other options a model fits that does not."""

from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import model_pb2

from models.experts.mapped import can_map
from tests.models.experts.holding import LARGE, write_mixture
from tests.support.tiny_models import write_llama
from worker.fit import estimate

BOUNDS: dict[str, Any] = {"max_batch_rows": 1, "context_tokens": 64, "prefix_cache_bytes": 0}
RESIDENT = {**BOUNDS, "experts": "resident"}
SLAB = model_pb2.EXPERTS_MODE_SLAB


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture") / "model", LARGE, is_packed=False)


def total(folder: Path, settings: dict[str, Any]) -> int:
    return estimate(folder, settings, 1).estimate.total_bytes


def fitting(folder: Path, settings: dict[str, Any], budget: int) -> list[model_pb2.LoadOptions]:
    return list(estimate(folder, settings, budget).fitting_options)


def merged(settings: dict[str, Any], options: model_pb2.LoadOptions) -> dict[str, Any]:
    """Return settings with options in place of the same."""
    word = model_pb2.ExpertsMode.Name(options.experts_mode).removeprefix("EXPERTS_MODE_").lower()
    given = {
        "experts": word if options.experts_mode else None,
        "expert_budget": options.expert_budget_bytes,
        "context_tokens": options.context_tokens,
        "max_batch_rows": options.max_batch_rows,
    }
    return {**settings, **{name: value for name, value in given.items() if value}}


def test_what_fits_needs_no_other_options(bare: Path) -> None:
    assert fitting(bare, RESIDENT, total(bare, RESIDENT)) == []


def test_experts_in_slabs_fit_where_resident_ones_do_not(bare: Path) -> None:
    assert fitting(bare, RESIDENT, total(bare, RESIDENT) - 1)[0] == model_pb2.LoadOptions(experts_mode=SLAB)


@pytest.mark.skipif(not can_map(), reason="this install maps no files")
def test_slabs_are_named_before_a_pack(tmp_path: Path) -> None:
    folder = write_mixture(tmp_path / "model", LARGE)
    modes = [each.experts_mode for each in fitting(folder, RESIDENT, total(folder, RESIDENT) - 1)]
    assert modes[:2] == [SLAB, model_pb2.EXPERTS_MODE_MAPPED]


def test_a_budget_that_is_too_large_is_told_the_largest_that_fits(bare: Path) -> None:
    budget = total(bare, {**BOUNDS, "experts": "slab"}) + 1_000_000
    settings = {**BOUNDS, "experts": "slab", "expert_budget": 8_000_000}
    first = fitting(bare, settings, budget)[0]
    assert 0 < first.expert_budget_bytes < 8_000_000
    assert estimate(bare, merged(settings, first), budget).estimate.total_bytes == budget


@pytest.mark.parametrize("changes", [{"experts": "resident"}, {"experts": "slab", "expert_budget": 9_000_000}, {}])
def test_whatever_is_told_does_fit(bare: Path, changes: dict[str, Any]) -> None:
    settings = {**BOUNDS, "max_batch_rows": 16, "context_tokens": 4096, **changes}
    budget = total(bare, {**BOUNDS, "experts": "slab"}) + 500_000
    told = fitting(bare, settings, budget)
    assert any(each.context_tokens for each in told)
    for options in told:
        assert estimate(bare, merged(settings, options), budget).estimate.total_bytes <= budget


def test_a_dense_model_is_told_fewer_rows_and_a_shorter_context(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    settings = {"max_batch_rows": 8, "context_tokens": 4096, "prefix_cache_bytes": 0}
    rows, context = fitting(folder, settings, total(folder, settings) - 1)
    assert (rows, context.context_tokens > 0) == (model_pb2.LoadOptions(max_batch_rows=7), True)
