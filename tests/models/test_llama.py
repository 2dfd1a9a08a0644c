"""Llama as it is served: chunks, caches and shapes; and what its config must say."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.architectures import check_architecture
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.text_config import read_text_config
from models.layers.dense import DenseConfig
from models.llama import dense_config
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from tests.models.stepping import assert_same_tokens, greedy, prefill, step_logits
from tests.models.variants import VARIANTS
from tests.support.tiny_models import CONFIG, VOCAB_SIZE, write_llama

PATHS = list(NumericPath)
REFERENCE_AND_FAST = (NumericPath.REFERENCE, NumericPath.FAST)
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 70)]
# Float32 sums in another order; logits here reach a few units.
CLOSE = 2e-4


def load_tiny(folder: Path, path: NumericPath, **options: Any) -> LoadedModel:
    return load(open_checkpoint(write_llama(folder, **options)), path, lambda _: None)


def whole_logits(loaded: LoadedModel, tokens: list[int]) -> np.ndarray:
    """Return the logits [T, V] at every position, computed in one step."""
    cache = loaded.make_cache(1)
    return np.array(step_logits(loaded, cache, tuple(tokens), tuple(range(len(tokens)))))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("cpu_kernels", [True, False])
def test_fast_greedy_tokens_are_those_of_the_reference(
    tmp_path: Path, variant: dict[str, Any], cpu_kernels: bool
) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "tiny", **variant))
    reference, fast = (load(checkpoint, path, lambda _: None, cpu_kernels=cpu_kernels) for path in REFERENCE_AND_FAST)
    assert_same_tokens(list(greedy(fast, PROMPT, 64)), list(greedy(reference, PROMPT, 64)), max_gap=CLOSE)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_steps_give_the_logits_of_one_step(tmp_path: Path, path: NumericPath, variant: dict[str, Any]) -> None:
    loaded = load_tiny(tmp_path / "tiny", path, **variant)
    cache = loaded.make_cache(1)
    one_by_one = [np.array(step_logits(loaded, cache, (token,))[0]) for token in PROMPT[:20]]
    assert np.abs(np.stack(one_by_one) - whole_logits(loaded, PROMPT[:20])).max() < CLOSE


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, 69, 70, 2048])
def test_the_size_of_chunks_does_not_matter(tmp_path: Path, path: NumericPath, chunk_tokens: int) -> None:
    loaded = load_tiny(tmp_path / "tiny", path)
    logits = np.array(prefill(loaded, loaded.make_cache(1), PROMPT, chunk_tokens))
    assert np.abs(logits - whole_logits(loaded, PROMPT)[-1]).max() < CLOSE


@pytest.mark.parametrize("path", PATHS)
def test_a_sequence_does_not_feel_its_neighbour(tmp_path: Path, path: NumericPath) -> None:
    loaded = load_tiny(tmp_path / "tiny", path)
    alone = [token for token, _ in greedy(loaded, PROMPT, 8)]
    cache = loaded.make_cache(2)
    prefill(loaded, cache, PROMPT[::-1], 16)
    assert [token for token, _ in greedy(loaded, PROMPT, 8, cache=cache, slot=1)] == alone


@pytest.mark.parametrize("path", PATHS)
def test_dropped_tokens_leave_no_trace(tmp_path: Path, path: NumericPath) -> None:
    loaded = load_tiny(tmp_path / "tiny", path)
    cache = loaded.make_cache(1)
    step_logits(loaded, cache, tuple(PROMPT[:10]))
    step = cache.begin(StepPlan((RowPlan(0, (1, 2, 3, 4), 10, (3,)),)))
    mx.eval(loaded.model.hidden(step))
    cache.commit(0, 0)
    logits = np.array(step_logits(loaded, cache, (PROMPT[10],))[0])
    assert np.abs(logits - whole_logits(loaded, PROMPT[:11])[-1]).max() < CLOSE


@pytest.mark.parametrize("path", PATHS)
def test_shapes_and_dtypes_are_as_promised(tmp_path: Path, path: NumericPath) -> None:
    loaded = load_tiny(tmp_path / "tiny", path)
    step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (1, 2, 3), 0, (0, 2)),)))
    hidden = loaded.model.hidden(step)
    logits = loaded.model.head(step.select(hidden))
    assert (hidden.shape, hidden.dtype) == ((1, 3, 64), mx.float32)
    assert (logits.shape, logits.dtype) == ((1, 2, VOCAB_SIZE), mx.float32)


def test_says_what_was_loaded(tmp_path: Path) -> None:
    loaded = load_tiny(tmp_path / "tiny", NumericPath.FAST)
    num_weights = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64) + 2 * VOCAB_SIZE * 64 + 64
    assert (loaded.path, loaded.compute_dtype, loaded.weights_bytes) == (NumericPath.FAST, "float32", 4 * num_weights)


def read(raw: dict[str, Any]) -> DenseConfig:
    text = read_text_config(raw)
    check_architecture(text, raw, "config.json")
    return dense_config(text)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
    ],
)
def test_a_config_without_a_number_that_it_needs_is_refused_by_key(key: str) -> None:
    raw = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(CheckpointRejected) as caught:
        read(raw)
    assert (caught.value.file, caught.value.key, caught.value.problem) == ("config.json", key, "is missing")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "rope_scaling.rope_type"),
    ],
)
def test_a_config_that_asks_for_what_is_not_built_is_refused_by_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointRejected) as caught:
        read({**CONFIG, **changes})
    assert caught.value.key == key


def test_a_window_of_null_is_no_window() -> None:
    raw = {**CONFIG, "sliding_window": None, "layer_types": ["full_attention"] * 2}
    assert read(raw).text.windows == (None, None)


def test_a_window_is_of_the_layers_that_are_named() -> None:
    raw = {**CONFIG, "sliding_window": 40, "layer_types": ["full_attention", "sliding_attention"]}
    assert read(raw).text.windows == (None, 40)


def test_a_config_leaves_out_what_follows() -> None:
    raw = {name: value for name, value in CONFIG.items() if name != "num_key_value_heads"}
    config = read(raw).text
    assert (config.num_key_value_heads, config.head_dim, config.tie_word_embeddings) == (4, 16, False)
