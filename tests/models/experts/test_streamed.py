"""A model whose experts lie in slabs gives the bits of the same model with all of them in memory."""

import errno
import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.errors import ExpertsError, ExpertUnreadable
from models.experts import expert_slab
from models.experts.streamed import Leases
from models.experts.usage import LEAST_SELECTIONS, SURE_SELECTIONS
from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import NumericPath, RowPlan, StepPlan
from native.slab import Arrival
from tests.models.experts.slab_models import InSlabs, in_slabs, resident
from tests.models.families import GEMMA4_MOE, Q4, QWEN3_MOE
from tests.models.stepping import step_logits
from tests.support.threads import only_where_told, threads
from tests.support.tiny_families import Tiny, write_family
from tests.support.tiny_models import write_tensors
from tests.support.waiting import wait_until

BOTH = [NumericPath.REFERENCE, NumericPath.FAST]
MIXTURES = {**QWEN3_MOE, **GEMMA4_MOE}
NAMES = [name for name in MIXTURES if name not in {"qwen3_moe tied", "qwen3_moe 4-bit"}]
MANY = Tiny("qwen3_moe", {"num_experts": 24, "num_hidden_layers": 3, "num_experts_per_tok": 4}, Q4)


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, 256, count))


@dataclass(slots=True)
class Clock:
    """Time that passes where a test says so."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return int(self.now * 1e9)


def stored(folder: Path) -> dict[str, mx.array]:
    found: Any = mx.load(str(folder / "model.safetensors"))
    mx.eval(found)
    return dict(found)


def held(model: InSlabs) -> list[str]:
    """Return the states of all slots, by their counts."""
    slabs = model.slabs._slabs
    return [slab._slab.state(slot) for slab in slabs for slot in range(slab.residency.division.num_slots)]


def assert_same_bits(
    model: InSlabs, whole: LoadedModel, prompt: Sequence[int], num_tokens: int, chunk: int | None = None
) -> None:
    """Compare the logits of every position of a prompt, and of each token after it."""
    ours, theirs = model.loaded.make_cache(1), whole.make_cache(1)
    size, expected = chunk or len(prompt), mx.zeros((1, 1))
    for start in range(0, len(prompt), size):
        part = tuple(prompt[start : start + size])
        everywhere = tuple(range(len(part)))
        expected = step_logits(whole, theirs, part, everywhere)
        assert mx.array_equal(step_logits(model.loaded, ours, part, everywhere), expected), f"prompt from {start}"
    token = int(np.argmax(np.array(expected[-1])))
    for index in range(num_tokens):
        expected = step_logits(whole, theirs, (token,))
        assert mx.array_equal(step_logits(model.loaded, ours, (token,)), expected), f"token {index}"
        # Not always the likeliest, or the same experts are asked again and again.
        token = int(np.argmax(np.array(expected[-1]))) if index % 3 else (token * 31 + index) % 256


@pytest.mark.parametrize("more_slots", [0, 3, None])
@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_bits_of_experts_in_memory(
    tmp_path: Path, name: str, path: NumericPath, more_slots: int | None
) -> None:
    folder = write_family(tmp_path / "tiny", MIXTURES[name])
    with in_slabs(folder, path, more_slots=more_slots) as model:
        assert_same_bits(model, resident(folder, path), tokens(50), 12)
        account = model.slabs.account
        assert account.misses_total > 0
        assert (account.evictions_total == 0) == (more_slots is None)


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("more_slots", [0, 20])
def test_two_hundred_tokens_have_them_behind_prompts_that_need_more_experts_than_there_are_slots(
    tmp_path: Path, path: NumericPath, more_slots: int
) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    with in_slabs(folder, path, more_slots=more_slots) as model:
        assert_same_bits(model, resident(folder, path), tokens(90, seed=more_slots), 200, chunk=64)
        assert model.slabs.account.evictions_total > 72


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe 4-bit"])
@pytest.mark.parametrize("path", BOTH)
def test_half_floats_are_read_as_they_are_computed_with(
    tmp_path: Path, path: NumericPath, name: str, dtype: mx.Dtype
) -> None:
    folder = write_family(tmp_path / "tiny", QWEN3_MOE[name])
    write_tensors(
        folder,
        {key: array.astype(dtype) if array.dtype == mx.float32 else array for key, array in stored(folder).items()},
    )
    with in_slabs(folder, path, more_slots=1) as model:
        assert_same_bits(model, resident(folder, path), tokens(30), 5)


@pytest.mark.parametrize("layout", ["each", "fused"])
def test_experts_are_read_in_the_layouts_of_hugging_face(tmp_path: Path, layout: str) -> None:
    folder = write_family(tmp_path / "tiny", QWEN3_MOE["qwen3_moe"])
    whole = resident(folder, NumericPath.FAST)
    mx.eval(step_logits(whole, whole.make_cache(1), tokens(3)))
    write_tensors(folder, unstacked(stored(folder), layout))
    with in_slabs(folder, NumericPath.FAST, more_slots=1) as model:
        assert_same_bits(model, whole, tokens(30), 5)


def unstacked(tensors: dict[str, mx.array], layout: str) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for name, array in tensors.items():
        outer, is_stack, kind = name.partition(".switch_mlp.")
        if not is_stack:
            found[name] = array
        elif layout == "each":
            found |= {f"{outer}.experts.{expert}.{kind}": array[expert] for expert in range(array.shape[0])}
        elif kind == "down_proj.weight":
            found[f"{outer}.experts.down_proj"] = array
        elif kind == "gate_proj.weight":
            both = [array, tensors[f"{outer}.switch_mlp.up_proj.weight"]]
            found[f"{outer}.experts.gate_up_proj"] = mx.concatenate(both, axis=1)
    mx.eval(found)
    return found


@pytest.mark.parametrize("path", BOTH)
def test_a_row_among_others_has_the_bits_of_experts_in_memory(tmp_path: Path, path: NumericPath) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    whole = resident(folder, path)
    with in_slabs(folder, path, more_slots=2) as model:
        ours, theirs = model.loaded.make_cache(3), whole.make_cache(3)
        for sizes in ((40, 1, 17), (1, 1, 1), (1, 30, 1), (1, 1, 1)):
            expected = together(whole, theirs, sizes)
            assert mx.array_equal(together(model.loaded, ours, sizes), expected), str(sizes)


def together(loaded: LoadedModel, cache: Cache, sizes: Sequence[int]) -> mx.array:
    """Add so many tokens to each row in one step, and return the logits at all of them."""
    rows = [
        RowPlan(row, tokens(size, seed=row + cache.length(row)), cache.length(row), tuple(range(size)))
        for row, size in enumerate(sizes)
    ]
    step = cache.begin(StepPlan(tuple(rows)))
    logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
    mx.eval(logits)
    for row in rows:
        cache.commit(row.slot, row.num_tokens)
    return logits


def test_a_row_alone_has_the_bits_that_it_has_among_others(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    with in_slabs(folder, NumericPath.FAST, more_slots=0) as model:
        batched = together(model.loaded, model.loaded.make_cache(3), (20, 1, 33))
        alone = [
            step_logits(model.loaded, model.loaded.make_cache(1), tokens(size, seed=row), tuple(range(size)))
            for row, size in enumerate((20, 1, 33))
        ]
        assert mx.array_equal(batched, mx.concatenate(alone))


def test_chunks_of_any_size_have_the_same_bits(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    prompt = tokens(80)
    with in_slabs(folder, NumericPath.FAST, more_slots=4) as model:
        whole = step_logits(model.loaded, model.loaded.make_cache(1), prompt, tuple(range(80)))
        for size in (1, 7, 33):
            cache, parts = model.loaded.make_cache(1), list[mx.array]()
            for start in range(0, 80, size):
                chunk = prompt[start : start + size]
                parts.append(step_logits(model.loaded, cache, chunk, tuple(range(len(chunk)))))
            assert mx.array_equal(mx.concatenate(parts), whole), f"chunks of {size}"


def test_every_lease_is_given_back(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "tiny", MANY)
    with in_slabs(folder, NumericPath.FAST, more_slots=6) as model:
        step_logits(model.loaded, model.loaded.make_cache(1), tokens(40))
        model.slabs._leases.settle()
        assert "leased" not in held(model)
        assert "loading" not in held(model)
        (slab,) = model.slabs._slabs
        assert not slab.residency._leases


@pytest.mark.parametrize("path", BOTH)
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
