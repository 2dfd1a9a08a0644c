"""A model whose experts lie in slabs gives the bits of the same model with all of them in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import NumericPath, RowPlan, StepPlan
from tests.models.experts.slab_models import MANY, assert_same_bits, in_slabs, resident, tokens
from tests.models.families import GEMMA4_MOE, QWEN3_MOE
from tests.models.stepping import step_logits
from tests.support.tiny_families import write_family
from tests.support.tiny_models import write_tensors

BOTH = [NumericPath.REFERENCE, NumericPath.FAST]
MIXTURES = {**QWEN3_MOE, **GEMMA4_MOE}
NAMES = [name for name in MIXTURES if name not in {"qwen3_moe tied", "qwen3_moe 4-bit"}]


def stored(folder: Path) -> dict[str, mx.array]:
    found: Any = mx.load(str(folder / "model.safetensors"))
    mx.eval(found)
    return dict(found)


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
