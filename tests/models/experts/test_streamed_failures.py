"""Steps over slabs that fail leave no lease and no slot behind, and the next one has its bits."""

import errno
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

from models.errors import ExpertUnreadable
from models.experts import expert_slab
from models.experts.streamed import Leases
from models.step import NumericPath
from native.slab import Arrival
from tests.models.experts.slab_models import MANY, assert_same_bits, held, in_slabs, resident, tokens
from tests.models.stepping import step_logits
from tests.support.tiny_families import write_family


@dataclass(slots=True)
class Clock:
    """Time that passes where a test says so."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.mark.parametrize("path", list(NumericPath))
def test_a_read_error_ends_its_step_and_leaves_the_slab_of_use(tmp_path: Path, path: NumericPath) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, path)
    expected = step_logits(whole, whole.make_cache(1), tokens(40), tuple(range(40)))
    file = folder / "model.safetensors"
    content = file.read_bytes()
    with in_slabs(folder, path, more_slots=3) as model:
        cache = model.loaded.make_cache(2)
        step_logits(model.loaded, cache, tokens(4, seed=9), slot=1)
        for left in (len(content) // 2, 0, len(content) * 3 // 4):
            with file.open("r+b") as stored_weights:
                stored_weights.truncate(left)
            with pytest.raises(ExpertUnreadable) as refused:
                step_logits(model.loaded, cache, tokens(40))
            assert (refused.value.file, refused.value.code) == (file.name, errno.ENODATA)
            assert refused.value.module.endswith(".mlp.switch_mlp")
            assert str(folder) not in str(refused.value)
            cache.release(0)
            with file.open("r+b") as stored_weights:
                stored_weights.write(content)
            assert mx.array_equal(step_logits(model.loaded, cache, tokens(40), tuple(range(40))), expected)
            cache.release(0)
        model.slabs._leases.settle()
        assert not {"leased", "loading"} & set(held(model))


def test_a_file_that_is_replaced_once_the_model_is_loaded_is_not_read(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    with in_slabs(folder, NumericPath.FAST) as model:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(b"something else")
        assert_same_bits(model, whole, tokens(20), 2)


def test_a_read_that_does_not_end_costs_its_step_and_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        (slab,) = model.slabs._slabs
        monkeypatch.setattr(slab._slab, "wait", lambda *_: ("waiting", 0))
        monkeypatch.setattr(slab._slab, "state", lambda _: "loading")
        with pytest.raises(ExpertUnreadable, match="is not read in time"):
            step_logits(model.loaded, model.loaded.make_cache(1), tokens(5))
        assert slab.residency.stuck_slots
        monkeypatch.undo()
        assert_same_bits(model, whole, tokens(20), 2)
        assert not slab.residency.stuck_slots


def test_the_experts_of_a_wave_have_one_time_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    clock = Clock()
    with in_slabs(folder, NumericPath.FAST, more_slots=20) as model:
        (slab,) = model.slabs._slabs
        wait = slab._slab.wait
        given: list[float] = []

        def slow(slot: int, generation: int, longest_s: float) -> tuple[Arrival, int]:
            given.append(longest_s)
            clock.now += min(longest_s, 20)
            return wait(slot, generation, 9) if longest_s >= 20 else ("waiting", 0)

        monkeypatch.setattr(expert_slab, "time", clock)
        monkeypatch.setattr(slab._slab, "wait", slow)
        with pytest.raises(ExpertUnreadable, match="is not read in time"):
            step_logits(model.loaded, model.loaded.make_cache(1), tokens(40))
        assert (given, clock.now) == ([30, 10], 30)


def test_a_step_that_fails_between_question_and_answers_leaves_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        (slab,) = model.slabs._slabs
        layer = model.slabs._groups[next(iter(model.slabs._groups))].layers[0]
        layer.start(mx.ones((1, 2, 64)), mx.array([[[0, 1, 2, 3], [4, 5, 6, 7]]]))
        assert_same_bits(model, whole, tokens(20), 2)
        model.slabs._leases.settle()
        assert not slab.residency._leases


def test_experts_that_were_there_are_given_back_where_others_cannot_be_read(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        (slab,) = model.slabs._slabs
        for seed in range(20):
            step_logits(model.loaded, model.loaded.make_cache(1), tokens(20, seed=seed))
            with file.open("r+b") as stored_weights:
                stored_weights.truncate(0)
                with pytest.raises(ExpertUnreadable, match="breaks off"):
                    step_logits(model.loaded, model.loaded.make_cache(1), tokens(20, seed=seed + 1))
                stored_weights.write(content)
            model.slabs._leases.settle()
            assert not slab.residency._leases
            assert "leased" not in held(model)
        assert_same_bits(model, whole, tokens(20), 2)


@pytest.mark.parametrize("number", range(1, 12))
def test_a_wave_is_given_back_where_computing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        (slab,) = model.slabs._slabs
        calls = iter(range(1, 1000))
        settle = Leases.settle

        def failing(leases: Leases, *wanted: mx.array) -> None:
            settle(leases, *wanted)
            if next(calls) == number:
                raise RuntimeError("an array cannot be computed")

        with monkeypatch.context() as patch:
            patch.setattr(Leases, "settle", failing)
            with pytest.raises(RuntimeError, match="cannot be computed"):
                step_logits(model.loaded, model.loaded.make_cache(1), tokens(40))
        model.slabs._leases.give_up()
        assert not slab.residency._leases
        assert "leased" not in held(model)  # reads that were given up may still be ending
        assert_same_bits(model, whole, tokens(20), 2)


def test_reads_that_have_all_slots_and_do_not_end_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, NumericPath.FAST)
    with in_slabs(folder, NumericPath.FAST, more_slots=3) as model:
        (slab,) = model.slabs._slabs
        num_slots = slab.residency.division.num_slots
        monkeypatch.setattr(slab._slab, "wait", lambda *_: ("waiting", 0))
        monkeypatch.setattr(slab._slab, "state", lambda _: "loading")
        for seed in range(num_slots):
            with pytest.raises(ExpertUnreadable, match="is not read in time"):
                step_logits(model.loaded, model.loaded.make_cache(1), tokens(5, seed=seed))
        assert len(slab.residency.stuck_slots) == num_slots
        monkeypatch.undo()
        assert_same_bits(model, whole, tokens(20), 2)
        assert not slab.residency.stuck_slots
