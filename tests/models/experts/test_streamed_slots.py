"""What lies in the slots of a model's slabs: from its start, over steps, to its end."""

import gc
import weakref
from pathlib import Path

import pytest

from models.errors import ExpertsError
from models.experts.usage import LEAST_SELECTIONS, SURE_SELECTIONS
from models.step import NumericPath
from tests.models.experts.slab_models import MANY, assert_same_bits, held, in_slabs, resident, tokens
from tests.models.stepping import step_logits
from tests.support.threads import only_where_told, threads
from tests.support.tiny_families import write_family
from tests.support.waiting import wait_until


def test_every_lease_is_given_back(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    with in_slabs(folder, NumericPath.FAST, more_slots=6) as model:
        step_logits(model.loaded, model.loaded.make_cache(1), tokens(40))
        model.slabs._leases.settle()
        assert "leased" not in held(model)
        assert "loading" not in held(model)
        (slab,) = model.slabs._slabs
        assert not slab.residency._leases


@only_where_told
def test_closing_ends_threads_and_frees_the_slab(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    step_logits(whole, whole.make_cache(1), tokens(5))  # starts the threads of MLX and of kernels
    before = threads()
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        step_logits(model.loaded, model.loaded.make_cache(1), tokens(5))
        slab = weakref.ref(model.slabs._slabs[0])
        assert threads() - before
        model.slabs.close()
        model.slabs.close()
        gc.collect()
        wait_until(lambda: not threads() - before)
        assert slab() is None
        assert model.slabs.nbytes == 0
        with pytest.raises(ExpertsError, match="no slots"):
            step_logits(model.loaded, model.loaded.make_cache(1), tokens(5))


def test_experts_that_were_needed_often_are_there_at_the_next_start(tmp_path: Path) -> None:
    folder, usage = write_family(tmp_path / "tiny", MANY), tmp_path / "usage"
    usage.write_text(f"0 5 {SURE_SELECTIONS}\n2 7 {LEAST_SELECTIONS}\n2 9 {LEAST_SELECTIONS - 1}\n")
    with in_slabs(folder, NumericPath.FAST, usage_file=usage, more_slots=30) as model:
        (slab,) = model.slabs._slabs
        assert slab.residency.division.layer_slots >= 4
        assert [set(slab.residency.pinned(layer)) for layer in range(3)] == [{5}, set(), {7, 9}]
        assert model.slabs.account.misses_total == 0
        assert model.slabs.account.bytes_read_total == 3 * sum(part.nbytes for part in slab._layers[0].parts)
        assert_same_bits(model, resident(folder, NumericPath.FAST), tokens(60), 20)
        assert [set(slab.residency.pinned(layer)) for layer in range(3)] == [{5}, set(), {7, 9}]
    assert sum(int(line.split()[2]) for line in usage.read_text().splitlines()) > SURE_SELECTIONS + 80 * 4 * 3


def test_pinned_experts_that_are_no_longer_needed_give_way(tmp_path: Path) -> None:
    folder, usage = write_family(tmp_path / "tiny", MANY), tmp_path / "usage"
    usage.write_text(f"0 5 {SURE_SELECTIONS}\n1 6 {LEAST_SELECTIONS}\n")
    with in_slabs(folder, NumericPath.FAST, usage_file=usage, more_slots=30) as model:
        (slab,) = model.slabs._slabs
        ledger = model.slabs._ledger
        assert ledger is not None
        step_logits(model.loaded, model.loaded.make_cache(1), tokens(1))
        here = next(expert for expert in range(24) if expert != 6 and slab.residency.slot(1, expert) is not None)
        gone = next(expert for expert in range(24) if slab.residency.slot(0, expert) is None)
        ledger.note(1, {here: 2 * LEAST_SELECTIONS})
        ledger.note(0, {gone: 2 * SURE_SELECTIONS})
        model.slabs._review(ledger)
        assert slab.residency.pinned(1) == {here}
        assert slab.residency.pinned(0) == {5}  # the other one is not there
        assert_same_bits(model, resident(folder, NumericPath.FAST), tokens(40), 5)


def test_counts_what_was_there_and_what_was_read(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    with in_slabs(folder, NumericPath.FAST) as model:
        cache = model.loaded.make_cache(1)
        step_logits(model.loaded, cache, tokens(1))
        account = model.slabs.account
        assert (account.hits_total, account.misses_total, account.evictions_total) == (0, 12, 0)
        assert account.bytes_read_total == 12 * model.slabs.stored_bytes // 72
        assert account.stall_ns_total > 0
        cache.release(0)
        step_logits(model.loaded, cache, tokens(1))
        assert (account.hits_total, account.misses_total) == (12, 12)
