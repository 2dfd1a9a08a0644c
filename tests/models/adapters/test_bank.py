"""Adapters beside a model: each row gets its own, whatever rows come with it, and those without get the model."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.errors import PlanError
from models.layers.cache import Cache
from models.registry import LoadedModel, load
from models.step import AdapterUse, NumericPath, RowPlan, StepPlan
from native import kernels
from tests.models.adapters.mounting import bank_of, mount, mount_random, targets_of, write_for
from tests.models.families import FAMILIES
from tests.models.stepping import step_logits
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.tiny_adapters import factors, named, settings_of, write_adapter
from tests.support.tiny_families import write_family
from tests.support.tiny_models import write_llama

PROMPT = tuple(int(token) for token in np.random.default_rng(11).integers(0, 256, 60))
KINDS: dict[str, dict[str, Any]] = {
    **{kind: VARIANTS[kind] for kind in ("untied", "biases", "4-bit", "4-bit biases", "mixed tied")},
    **WINDOWED,
}
needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


def load_at(folder: Path, path: NumericPath = NumericPath.FAST, **options: bool) -> LoadedModel:
    return load(open_checkpoint(folder), path, lambda _: None, **options)  # pyright: ignore[reportArgumentType]


def whole(loaded: LoadedModel, *adapters: AdapterUse, tokens: tuple[int, ...] = PROMPT) -> mx.array:
    """Return the logits [T, V] at every position, computed in one step."""
    return step_logits(loaded, loaded.make_cache(1), tokens, tuple(range(len(tokens))), adapters=adapters)


def mixed_logits(loaded: LoadedModel, cache: Cache, rows: list[RowPlan]) -> list[mx.array]:
    """Return the logits of each row of one step."""
    step = cache.begin(StepPlan(tuple(rows)))
    bank_of(loaded).serve(step)
    logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
    mx.eval(logits)
    for row in rows:
        cache.commit(row.slot, row.num_tokens)
    ends = np.cumsum([row.num_tokens for row in rows])
    return [logits[end - row.num_tokens : end] for row, end in zip(rows, ends, strict=True)]


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_step_get_what_they_get_alone(tmp_path: Path, kind: str) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny", **KINDS[kind]))
    first, second, third = (
        mount_random(loaded, tmp_path / str(number), rank=rank, seed=number, within=within)
        for number, (rank, within) in enumerate(((2, ""), (7, "layers.1"), (16, "mlp")))
    )
    used: list[tuple[AdapterUse, ...]] = [
        (),
        (AdapterUse(first),),
        (AdapterUse(second, 0.5), AdapterUse(first)),
        (AdapterUse(first), AdapterUse(second, 0.5)),
        (AdapterUse(third),),
        (AdapterUse(first, -1.0),),
        (),
        (AdapterUse(first), AdapterUse(first)),
    ]
    rng = np.random.default_rng(5)
    prompts = [tuple(int(token) for token in rng.integers(0, 256, rng.integers(10, 50))) for _ in used]
    alone = [whole(loaded, *uses, tokens=prompt) for uses, prompt in zip(used, prompts, strict=True)]
    cache, done = loaded.make_cache(len(used)), [0] * len(used)
    while left := [row for row in range(len(used)) if done[row] < len(prompts[row])]:
        chosen = [int(row) for row in rng.permutation(left)[: rng.integers(1, len(left) + 1)]]
        plans: list[RowPlan] = []
        for row in chosen:
            size = int(rng.integers(1, min(12, len(prompts[row]) - done[row]) + 1))
            chunk = prompts[row][done[row] : done[row] + size]
            plans.append(RowPlan(row, chunk, done[row], tuple(range(size)), used[row]))
        for plan, logits in zip(plans, mixed_logits(loaded, cache, plans), strict=True):
            assert mx.array_equal(logits, alone[plan.slot][plan.start : plan.start + plan.num_tokens])
            done[plan.slot] += plan.num_tokens


@pytest.mark.parametrize("num_tokens", [1, 30])
def test_rows_that_mlx_computes_get_nearly_what_they_get_alone(tmp_path: Path, num_tokens: int) -> None:
    """Few tokens gather their factors, many are grouped."""
    loaded = load_at(write_llama(tmp_path / "tiny", **VARIANTS["4-bit"]), cpu_kernels=False)
    first, second, third = (
        mount_random(loaded, tmp_path / str(number), rank=rank, seed=number, within=within)
        for number, (rank, within) in enumerate(((2, ""), (7, "layers.1"), (16, "mlp")))
    )
    used = [
        (AdapterUse(first),),
        (),
        (AdapterUse(second, 0.5), AdapterUse(first)),
        (AdapterUse(third, 2.0),),
        (AdapterUse(first, -1.0),),
    ]
    cache = loaded.make_cache(len(used))
    rows = [RowPlan(row, PROMPT[:num_tokens], 0, (num_tokens - 1,), uses) for row, uses in enumerate(used)]
    step = cache.begin(StepPlan(tuple(rows)))
    bank_of(loaded).serve(step)
    logits = np.array(loaded.model.head(step.select(loaded.model.hidden(step)))[0])
    for row, uses in enumerate(used):
        alone = np.array(whole(loaded, *uses, tokens=PROMPT[:num_tokens])[-1])
        np.testing.assert_allclose(logits[row], alone, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_the_same_bits_in_chunks_of_any_size(tmp_path: Path, kind: str) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny", **KINDS[kind]))
    use = AdapterUse(mount_random(loaded, tmp_path / "a"))
    expected = whole(loaded, use)
    for size in (1, 7, 32):
        cache, parts = loaded.make_cache(1), list[mx.array]()
        for start in range(0, len(PROMPT), size):
            chunk = PROMPT[start : start + size]
            parts.append(step_logits(loaded, cache, chunk, tuple(range(len(chunk))), adapters=(use,)))
        assert mx.array_equal(mx.concatenate(parts), expected), f"chunks of {size}"


@pytest.mark.parametrize("path", NumericPath)
def test_without_adapters_nothing_changes(tmp_path: Path, path: NumericPath) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny", **VARIANTS["4-bit"]), path)
    before = whole(loaded)
    slot = mount_random(loaded, tmp_path / "a")
    assert mx.array_equal(whole(loaded), before)
    assert not mx.array_equal(whole(loaded, AdapterUse(slot)), before)
    assert mx.array_equal(whole(loaded), before)
    bank_of(loaded).unmount(slot)
    assert mx.array_equal(whole(loaded), before)


@pytest.mark.parametrize("options", [{"cpu_kernels": True}, {"cpu_kernels": False}, {"path": NumericPath.REFERENCE}])
def test_both_layouts_give_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"), **options)
    mlx, peft = (mount_random(loaded, tmp_path / layout, layout=layout) for layout in ("mlx", "peft"))
    np.testing.assert_allclose(
        np.array(whole(loaded, AdapterUse(mlx))), np.array(whole(loaded, AdapterUse(peft))), atol=2e-5
    )


@pytest.mark.parametrize("is_peft", [False, True])
def test_square_matrices_of_full_rank_are_applied_as_they_are_spelled(tmp_path: Path, is_peft: bool) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"), NumericPath.REFERENCE)
    target = targets_of(loaded)["model.layers.0.self_attn.q_proj"]
    assert target.inputs == target.outputs
    matrices = factors([target], target.inputs, size=0.05)
    layout = "peft" if is_peft else "mlx"
    tensors = named(matrices, layout)
    settings = settings_of(layout, target.inputs, **({"lora_alpha": 2.0 * target.inputs} if is_peft else {}))
    slot = mount(loaded, write_adapter(tmp_path / "a", tensors, settings))
    a, b = (mx.array(matrix) for matrix in matrices[target.module])
    addition = loaded.adapters and _addition(loaded, slot, target.module)
    assert addition is not None
    x = mx.random.normal((1, 3, target.inputs), key=mx.random.key(1))
    np.testing.assert_allclose(np.array(addition(x, mx.zeros_like(x))), np.array(2.0 * ((x @ a) @ b)), atol=1e-5)


def _addition(loaded: LoadedModel, slot: int, module: str) -> Any:
    step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (1, 2, 3), 0, (), (AdapterUse(slot),)),)))
    bank_of(loaded).serve(step)
    return step.adapters.of(module)


@pytest.mark.parametrize("options", [{"cpu_kernels": True}, {"cpu_kernels": False}, {"path": NumericPath.REFERENCE}])
def test_adds_what_the_definition_says(tmp_path: Path, options: dict[str, Any]) -> None:
    """Case 14: y + (alpha / r) x A^T B^T."""
    loaded = load_at(write_llama(tmp_path / "tiny"), **options)
    target = targets_of(loaded)["model.layers.0.mlp.down_proj"]
    rng = np.random.default_rng(2)
    a = rng.normal(size=(4, target.inputs)).astype(np.float32)
    b = rng.normal(size=(target.outputs, 4)).astype(np.float32)
    module = f"base_model.model.{target.module}"
    tensors = {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    slot = mount(loaded, write_adapter(tmp_path / "a", tensors, settings_of("peft", 4, lora_alpha=12)))
    x = rng.normal(size=(1, 3, target.inputs)).astype(np.float32)
    y = rng.normal(size=(1, 3, target.outputs)).astype(np.float32)
    found = np.array(_addition(loaded, slot, target.module)(mx.array(x), mx.array(y)))
    np.testing.assert_allclose(found, y + (12 / 4) * (x @ a.T @ b.T), rtol=1e-5, atol=1e-3)


CHANGED = (
    "qwen2 untied",
    "phi3 4-bit",
    "gemma3 mixed",
    "gemma4 edge mixed",
    "qwen3 mxfp4",
    "qwen3_moe",
    "gemma4 experts fused",
    "qwen3_5",
    "qwen3_5_moe 4-bit",
)


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("path", NumericPath)
def test_every_layer_that_takes_adapters_is_changed_by_one(tmp_path: Path, name: str, path: NumericPath) -> None:
    loaded = load_at(write_family(tmp_path / "tiny", FAMILIES[name]), path)
    base = whole(loaded)
    for number, (module, target) in enumerate(targets_of(loaded).items()):
        tensors = named(factors([target], 4, size=1.0), "mlx")
        slot = mount(loaded, write_adapter(tmp_path / str(number), tensors, settings_of("mlx")))
        assert not mx.array_equal(whole(loaded, AdapterUse(slot)), base), module
        bank_of(loaded).unmount(slot)


@pytest.mark.parametrize("options", [{"cpu_kernels": True}, {"cpu_kernels": False}, {"path": NumericPath.REFERENCE}])
def test_a_scale_multiplies_the_adapters_own(tmp_path: Path, options: dict[str, Any]) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"), **options)
    plain, half = (mount_random(loaded, tmp_path / str(scale), scale=scale) for scale in (2.0, 1.0))
    assert mx.array_equal(whole(loaded, AdapterUse(plain, 0.5)), whole(loaded, AdapterUse(half)))
    assert mx.array_equal(whole(loaded, AdapterUse(plain, 0.0)), whole(loaded))


@pytest.mark.parametrize("options", [{"cpu_kernels": True}, {"cpu_kernels": False}, {"path": NumericPath.REFERENCE}])
def test_several_are_summed(tmp_path: Path, options: dict[str, Any]) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"), **options)
    slots = [mount_random(loaded, tmp_path / str(seed), seed=seed, rank=seed + 1) for seed in range(3)]
    module = "model.layers.1.mlp.up_proj"
    target = targets_of(loaded)[module]
    x = mx.random.normal((1, 3, target.inputs), key=mx.random.key(1))
    base = mx.zeros((1, 3, target.outputs))
    each = [np.array(_addition(loaded, slot, module)(x, base)) for slot in slots]
    step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (1, 2, 3), 0, (), tuple(map(AdapterUse, slots))),)))
    bank_of(loaded).serve(step)
    addition = step.adapters.of(module)
    assert addition is not None
    np.testing.assert_allclose(np.array(addition(x, base)), sum(each), rtol=1e-5, atol=1e-4)


def test_the_head_takes_no_adapter(tmp_path: Path) -> None:
    for tied in (True, False):
        loaded = load_at(write_llama(tmp_path / str(tied), config={"tie_word_embeddings": tied}))
        assert {module.split(".")[1] for module in targets_of(loaded)} == {"layers"}


def test_a_step_that_was_not_given_its_adapters_fails(tmp_path: Path) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"))
    slot = mount_random(loaded, tmp_path / "a")
    step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (1,), 0, (0,), (AdapterUse(slot),)),)))
    with pytest.raises(PlanError, match="was not given the adapters"):
        loaded.model.hidden(step)


def test_a_slot_that_is_empty_is_refused_and_never_used_again(tmp_path: Path) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"))
    slot = mount_random(loaded, tmp_path / "a")
    whole(loaded, AdapterUse(slot))
    bank_of(loaded).unmount(slot)
    with pytest.raises(PlanError, match=f"no adapter is mounted in slot {slot}"):
        whole(loaded, AdapterUse(slot))
    with pytest.raises(PlanError, match="no adapter is mounted"):
        bank_of(loaded).unmount(slot)
    assert mount_random(loaded, tmp_path / "b") == slot + 1


def test_bytes_are_those_of_what_is_mounted(tmp_path: Path) -> None:
    loaded = load_at(write_llama(tmp_path / "tiny"))
    bank = bank_of(loaded)
    folders = [write_for(tmp_path / str(rank), loaded, rank=rank) for rank in (2, 8)]
    sizes = [sum(4 * rank * (t.inputs + t.outputs) for t in bank.targets.values()) for rank in (2, 8)]
    slots = [mount(loaded, folder) for folder in folders]
    assert bank.nbytes == sum(sizes)
    assert [bank.unmount(slot) for slot in slots] == sizes
    assert bank.nbytes == 0
