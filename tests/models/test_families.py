"""Every dense family as it is served: its paths agree, and on the fast one a position's bits hang on nothing else."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.kv_scheme import KVScheme
from models.recorded import RecordedModel
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from native import kernels
from tests.models.families import FAMILIES, HYBRID
from tests.models.stepping import assert_same_tokens, greedy, step_logits
from tests.support.tiny_families import Tiny, write_family

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 90)]
# Float32 sums in another order; logits here reach a few units.
CLOSE = 5e-4
WITH_FLOATS = [name for name in FAMILIES if "fp" in name]
# TurboQuant packs heads of 64 and more.
WIDE = {
    "gemma3": Tiny("gemma3_text", {"head_dim": 64}),
    "qwen3 untied": Tiny("qwen3", {"head_dim": 64}),
}
needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


def load_family(
    folder: Path, name: str, path: NumericPath = NumericPath.FAST, *, cpu_kernels: bool = True
) -> LoadedModel:
    return load(open_checkpoint(write_family(folder, FAMILIES[name])), path, lambda _: None, cpu_kernels=cpu_kernels)


def worst(found: mx.array, expected: mx.array) -> float:
    """Return the largest difference of two arrays."""
    return float(np.abs(np.array(found) - np.array(expected)).max())


def whole(loaded: LoadedModel, tokens: Sequence[int]) -> mx.array:
    """Return the logits [T, V] at every position, computed in one step."""
    return step_logits(loaded, loaded.make_cache(1), tuple(tokens), tuple(range(len(tokens))))


def in_chunks(loaded: LoadedModel, tokens: Sequence[int], size: int) -> mx.array:
    """Return the same, computed in several steps."""
    cache, parts = loaded.make_cache(1), list[mx.array]()
    for start in range(0, len(tokens), size):
        chunk = tuple(tokens[start : start + size])
        parts.append(step_logits(loaded, cache, chunk, tuple(range(len(chunk)))))
    return mx.concatenate(parts)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cpu_kernels", [True, False])
def test_fast_greedy_tokens_are_those_of_the_reference(tmp_path: Path, name: str, cpu_kernels: bool) -> None:
    reference = load_family(tmp_path / "tiny", name, NumericPath.REFERENCE)
    fast = load_family(tmp_path / "tiny", name, cpu_kernels=cpu_kernels)
    assert_same_tokens(list(greedy(fast, PROMPT, 16)), list(greedy(reference, PROMPT, 16)), max_gap=CLOSE)
    assert worst(whole(fast, PROMPT), whole(reference, PROMPT)) < CLOSE


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("path", "cpu_kernels"), [(NumericPath.REFERENCE, True), (NumericPath.FAST, False)])
def test_cached_steps_give_the_logits_of_one_step(
    tmp_path: Path, name: str, path: NumericPath, cpu_kernels: bool
) -> None:
    loaded = load_family(tmp_path / "tiny", name, path, cpu_kernels=cpu_kernels)
    expected = whole(loaded, PROMPT[:60])
    for size in (1, 7, 33):
        assert worst(in_chunks(loaded, PROMPT[:60], size), expected) < CLOSE, f"chunks of {size}"


@needs_kernels
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_have_the_same_bits_in_chunks_of_any_size(tmp_path: Path, name: str) -> None:
    loaded = load_family(tmp_path / "tiny", name)
    expected = whole(loaded, PROMPT)
    for size in (1, 7, 33, 64, 89):
        assert mx.array_equal(in_chunks(loaded, PROMPT, size), expected), f"chunks of {size}"


@needs_kernels
@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_of_a_ragged_batch_has_the_bits_that_it_has_alone(tmp_path: Path, name: str) -> None:
    loaded = load_family(tmp_path / "tiny", name)
    prompts = [PROMPT[:5], PROMPT[3:70], PROMPT[40:]]
    cache, done = loaded.make_cache(3), [0, 0, 0]
    found: list[list[mx.array]] = [[], [], []]
    for sizes in ([3, 30, 1], [0, 30, 40], [2, 7, 9]):
        rows = [row for row in range(3) if sizes[row]]
        plans = [
            RowPlan(row, tuple(prompts[row][done[row] : done[row] + sizes[row]]), done[row], tuple(range(sizes[row])))
            for row in rows
        ]
        step = cache.begin(StepPlan(tuple(plans)))
        logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
        mx.eval(logits)
        for row, span in zip(rows, step.spans, strict=True):
            found[row].append(logits[span.first : span.first + span.count])
            cache.commit(row, span.count)
            done[row] += span.count
    for row, prompt in enumerate(prompts):
        assert mx.array_equal(mx.concatenate(found[row]), whole(loaded, prompt)), f"row {row}"


@needs_kernels
@pytest.mark.parametrize("name", FAMILIES)
def test_a_shared_prefix_leaves_the_bits_of_a_cold_start(tmp_path: Path, name: str) -> None:
    loaded = load_family(tmp_path / "tiny", name)
    cache = loaded.make_cache(2)
    step_logits(loaded, cache, tuple(PROMPT[:80]), ())
    cache.adopt(1, cache.share(0))
    assert cache.length(1) == 64
    found = step_logits(loaded, cache, tuple(PROMPT[64:]), tuple(range(len(PROMPT) - 64)), slot=1)
    assert mx.array_equal(found, whole(loaded, PROMPT)[64:])


@needs_kernels
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in (*WITH_FLOATS, *HYBRID)])
def test_a_forward_is_recorded_with_its_bits(tmp_path: Path, name: str) -> None:
    loaded = load_family(tmp_path / "tiny", name)
    assert isinstance(loaded.model, RecordedModel)
    expected = loaded.model.graph.hidden(loaded.make_cache(1).begin(StepPlan((RowPlan(0, tuple(PROMPT), 0, ()),))))
    in_chunks(loaded, PROMPT[:40], 11)
    found = loaded.model.hidden(loaded.make_cache(1).begin(StepPlan((RowPlan(0, tuple(PROMPT), 0, ()),))))
    assert mx.array_equal(found, expected)
    assert loaded.model.is_recorded


@needs_kernels
@pytest.mark.parametrize("name", WITH_FLOATS)
def test_a_forward_with_operations_of_mlx_is_not_recorded(tmp_path: Path, name: str) -> None:
    loaded = load_family(tmp_path / "tiny", name)
    assert isinstance(loaded.model, RecordedModel)
    in_chunks(loaded, PROMPT[:40], 11)
    assert not loaded.model.is_recorded


@pytest.mark.parametrize("scheme", ["8", "turbo:k8v8"])
@pytest.mark.parametrize("name", ["gemma4 edge", "gemma4 values from keys", "gemma3", "qwen3 untied"])
def test_keys_and_values_may_be_packed(tmp_path: Path, name: str, scheme: str) -> None:
    checkpoint = open_checkpoint(write_family(tmp_path / "tiny", WIDE.get(name, FAMILIES[name])))
    plain, packed = (
        load(checkpoint, NumericPath.FAST, lambda _: None, kv_scheme=kv_scheme)
        for kv_scheme in (None, KVScheme.from_text(scheme))
    )
    found, expected = in_chunks(packed, PROMPT, 30), in_chunks(plain, PROMPT, 30)
    assert 0 < worst(found, expected) < 0.05 * worst(expected, mx.zeros_like(expected))
