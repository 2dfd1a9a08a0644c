"""With native kernels a position has the same bits however the tokens are cut, placed and shared among threads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.layers.arithmetic import Product
from models.layers.native_arithmetic import NativeArithmetic
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from native import dense, kernels
from tests.models.stepping import REFERENCE_CHUNK_TOKENS, prefill, step_logits
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.smollm2 import smollm2_path
from tests.support.tiny_models import write_llama, write_tensors

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")

# Every variant, and packed weights with every kind of positions.
EVERY: dict[str, dict[str, Any]] = {
    **VARIANTS,
    **WINDOWED,
    "4-bit rope linear": {**VARIANTS["4-bit"], **VARIANTS["rope linear"]},
    "4-bit rope llama3": {**VARIANTS["4-bit"], **VARIANTS["rope llama3"]},
    "4-bit rope of neighbours": {**VARIANTS["4-bit"], **VARIANTS["rope of neighbours"]},
    "odd widths": {"config": {"hidden_size": 40, "intermediate_size": 90}},
}
KINDS = ("untied", "4-bit")
PROMPT = [int(token) for token in np.random.default_rng(11).integers(0, 256, 300)]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def load_fast(path: Path) -> LoadedModel:
    loaded = load(open_checkpoint(path), NumericPath.FAST, lambda _: None)
    assert loaded.arithmetic.name == "native"
    return loaded


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


def in_dtype(folder: Path, dtype: mx.Dtype) -> Path:
    """Rewrite the floating tensors of a checkpoint."""
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors: dict[str, mx.array] = dict(stored)
    mx.eval(tensors)
    floats = {name: array.astype(dtype) for name, array in tensors.items() if array.dtype == mx.float32}
    write_tensors(folder, tensors | floats)
    return folder


@pytest.mark.parametrize("variant", EVERY.values(), ids=EVERY.keys())
def test_logits_have_the_same_bits_in_chunks_of_any_size(tmp_path: Path, variant: dict[str, Any]) -> None:
    loaded = load_fast(write_llama(tmp_path / "tiny", **variant))
    expected = whole(loaded, PROMPT)
    for size in (1, 2, 7, 64, 255, 299):
        assert mx.array_equal(in_chunks(loaded, PROMPT, size), expected), f"chunks of {size}"


def test_a_sum_in_another_order_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(_: NativeArithmetic, weight: mx.array, bias: mx.array | None) -> Product:
        backwards = mx.contiguous(weight[:, ::-1])
        return lambda x: dense.linear(x, weight) if x.shape[1] == 1 else dense.linear(x[..., ::-1], backwards)

    monkeypatch.setattr(NativeArithmetic, "dense_product", product)
    loaded = load_fast(write_llama(tmp_path / "tiny", **EVERY["untied"]))
    assert not mx.array_equal(in_chunks(loaded, PROMPT[:20], 1), whole(loaded, PROMPT[:20]))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("kind", ["untied", "tied", "biases", "mixed tied"])
def test_logits_of_half_floats_have_the_same_bits_in_chunks_of_any_size(
    tmp_path: Path, kind: str, dtype: mx.Dtype
) -> None:
    loaded = load_fast(in_dtype(write_llama(tmp_path / "tiny", **EVERY[kind]), dtype))
    expected = whole(loaded, PROMPT)
    for size in (1, 7, 64, 299):
        assert mx.array_equal(in_chunks(loaded, PROMPT, size), expected), f"chunks of {size}"


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_have_the_same_bits_behind_an_adopted_prefix(tmp_path: Path, kind: str) -> None:
    loaded = load_fast(write_llama(tmp_path / "tiny", **EVERY[kind]))
    cache = loaded.make_cache(2)
    step_logits(loaded, cache, tuple(PROMPT[:270]), ())
    cache.adopt(1, cache.share(0))
    assert cache.length(1) == 256
    step = cache.begin(StepPlan((RowPlan(1, tuple(PROMPT[256:]), 256, ()),)))
    cached = loaded.model.hidden(step)
    cold = loaded.model.hidden(loaded.make_cache(1).begin(StepPlan((RowPlan(0, tuple(PROMPT), 0, ()),))))
    assert mx.array_equal(cached, cold[:, 256:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_a_row_has_the_same_bits_alone_and_among_others(tmp_path: Path, seed: int, kind: str) -> None:
    loaded = load_fast(write_llama(tmp_path / "tiny", **EVERY[kind]))
    random = np.random.default_rng(seed)
    prompts = [[int(token) for token in random.integers(0, 256, random.integers(4, 120))] for _ in range(5)]
    alone = [whole(loaded, prompt) for prompt in prompts]
    cache, done = loaded.make_cache(len(prompts)), [0] * len(prompts)
    while any(done[row] < len(prompts[row]) for row in range(len(prompts))):
        # Each step: some of the rows, each with some of its tokens, in any order.
        left = [row for row in range(len(prompts)) if done[row] < len(prompts[row])]
        chosen = [int(row) for row in random.permutation(left)[: random.integers(1, len(left) + 1)]]
        sizes = [int(random.integers(1, min(40, len(prompts[row]) - done[row]) + 1)) for row in chosen]
        chunks = [tuple(prompts[row][done[row] : done[row] + size]) for row, size in zip(chosen, sizes, strict=True)]
        plans = [
            RowPlan(row, chunk, done[row], tuple(range(len(chunk)))) for row, chunk in zip(chosen, chunks, strict=True)
        ]
        step = cache.begin(StepPlan(tuple(plans)))
        logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
        for row, span in zip(chosen, step.spans, strict=True):
            found = logits[span.first : span.first + span.count]
            expected = alone[row][span.start : span.start + span.count]
            assert mx.array_equal(found, expected), f"seed {seed}, row {row}, from {span.start}"
            cache.commit(row, span.count)
            done[row] += span.count


@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_the_same_bits_wherever_a_row_stands_in_a_step(tmp_path: Path, kind: str) -> None:
    loaded = load_fast(write_llama(tmp_path / "tiny", **EVERY[kind]))
    hidden = mx.random.normal((1, 40, 64))
    together = loaded.model.head(hidden)
    alone = [loaded.model.head(hidden[:, index : index + 1]) for index in range(40)]
    backwards = loaded.model.head(hidden[:, ::-1])[:, ::-1]
    assert mx.array_equal(mx.concatenate(alone, axis=1), together)
    assert mx.array_equal(backwards, together)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_the_same_bits_with_any_number_of_threads(tmp_path: Path, kind: str) -> None:
    loaded = load_fast(write_llama(tmp_path / "tiny", **EVERY[kind]))
    found: list[mx.array] = []
    for threads in (1, 2, 3, 8):
        kernels.set_threads(threads)
        found.append(mx.concatenate([whole(loaded, PROMPT), in_chunks(loaded, PROMPT[:20], 1)]))
    assert all(mx.array_equal(logits, found[0]) for logits in found)


@pytest.mark.real
def test_a_real_model_has_the_same_bits_however_its_prompt_is_computed() -> None:
    loaded = load_fast(smollm2_path())
    prompt = [(index * 7919 + 13) % 49152 for index in range(160)]
    expected = prefill(loaded, loaded.make_cache(1), prompt, REFERENCE_CHUNK_TOKENS)
    for chunk_tokens, threads in ((1, 2), (7, 1), (64, 1), (159, 2)):
        kernels.set_threads(threads)
        found = prefill(loaded, loaded.make_cache(1), prompt, chunk_tokens)
        assert mx.array_equal(found, expected), f"chunks of {chunk_tokens} by {threads} threads"
