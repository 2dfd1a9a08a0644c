"""Models some of whose layers keep a state: what their caches hold, share and put back."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.kv_scheme import KVScheme
from models.errors import PlanError
from models.layers.cache import Cache
from models.layers.recurrence import State, Walk
from models.layers.row_cache import RowCache
from models.layers.stores.coded import CodedStore
from models.layers.stores.full import FullStore
from models.layers.stores.state import StateStore
from models.layers.stores.store import StoreError
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from native import kernels
from tests.models.decoding import decode_together, random_prompts, uncached_logits
from tests.models.families import FAMILIES
from tests.models.stepping import step_logits
from tests.support.tiny_families import Tiny, write_family

PROMPT = tuple(int(token) for token in np.random.default_rng(3).integers(0, 256, 150))
# States so much larger than keys that copies are kept every fourth block.
LARGE = {"linear_num_value_heads": 8, "linear_num_key_heads": 8, "linear_key_head_dim": 48, "num_key_value_heads": 1}
needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


def hybrid(
    folder: Path, config: Mapping[str, int] | None = None, *, cpu_kernels: bool = True, scheme: str = "none"
) -> LoadedModel:
    checkpoint = open_checkpoint(write_family(folder, Tiny("qwen3_5", config or {})))
    kept = KVScheme.from_text(scheme)
    return load(checkpoint, NumericPath.FAST, lambda _: None, cpu_kernels=cpu_kernels, kv_scheme=kept)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return hybrid(tmp_path_factory.mktemp("hybrid"), LARGE)


def rows(cache: Cache) -> RowCache[StateStore]:
    assert isinstance(cache, RowCache)
    return cache


def last(loaded: LoadedModel, cache: Cache, tokens: tuple[int, ...], slot: int = 0) -> mx.array:
    """Add tokens and return the logits [V] of the last."""
    return step_logits(loaded, cache, tokens, slot=slot)[-1]


def test_a_cache_keeps_a_state_for_each_linear_layer_and_keys_for_the_others(loaded: LoadedModel) -> None:
    cache = rows(loaded.make_cache(1))
    assert [type(store) for store in cache.stores(0)] == [StateStore] * 3 + [FullStore]
    assert not cache.can_reject
    assert not loaded.can_go_back


def test_keys_may_be_packed_and_states_stay_as_they_are(tmp_path: Path) -> None:
    packed, plain = (hybrid(tmp_path / scheme, {"head_dim": 64}, scheme=scheme) for scheme in ("8", "none"))
    cache = rows(packed.make_cache(1))
    assert [type(store) for store in cache.stores(0)] == [StateStore] * 3 + [CodedStore]
    found, expected = (np.array(last(model, model.make_cache(1), PROMPT)) for model in (packed, plain))
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_a_step_cannot_go_back_and_what_was_begun_and_never_built_has_done_nothing(loaded: LoadedModel) -> None:
    cache = loaded.make_cache(1)
    cache.begin(StepPlan((RowPlan(0, PROMPT[:5], 0, ()),)))
    cache.commit(0, 0)
    step = cache.begin(StepPlan((RowPlan(0, PROMPT[:5], 0, ()),)))
    mx.eval(loaded.model.hidden(step))
    with pytest.raises(StoreError, match="cannot go back"):
        cache.commit(0, 3)


def test_a_sequence_holds_no_more_than_it_is_said_to(loaded: LoadedModel) -> None:
    cache, sizes = loaded.make_cache(1), loaded.kv_sizes
    for count in (1, 31, 40, 1, 60):
        step_logits(loaded, cache, (7,) * count)
        # Arrays of keys grow by 256 tokens.
        assert cache.nbytes <= sizes.sequence_bytes(256)
        assert cache.nbytes >= sizes.state_bytes


@needs_kernels
@pytest.mark.parametrize("num_shared", [30, 33, 64, 100, 128, 140])
def test_others_begin_behind_the_last_state_that_was_kept(loaded: LoadedModel, num_shared: int) -> None:
    cache = loaded.make_cache(2)
    step_logits(loaded, cache, PROMPT[:num_shared], ())
    parts = cache.share(0)
    usable = cache.usable(parts)
    assert usable == num_shared // 32
    cache.adopt(1, parts)
    found = last(loaded, cache, PROMPT[32 * usable :], 1)
    assert mx.array_equal(found, last(loaded, loaded.make_cache(1), PROMPT)).item()


@needs_kernels
def test_a_prompt_that_ends_with_a_block_leaves_a_state_before_its_last_token(loaded: LoadedModel) -> None:
    cache = loaded.make_cache(1)
    step_logits(loaded, cache, PROMPT[:96], ())
    parts = cache.share(0)
    assert [cache.usable(parts[:count]) for count in (1, 2, 3)] == [0, 2, 3]


@needs_kernels
def test_parts_are_written_and_read(loaded: LoadedModel) -> None:
    cache, other = loaded.make_cache(1), loaded.make_cache(1)
    assert cache.fingerprint == other.fingerprint
    step_logits(loaded, cache, PROMPT[:140], ())
    parts = [other.read(cache.write(part)) for part in cache.share(0)]
    held = [part for part in parts if part is not None]
    assert other.usable(held) == 4
    other.adopt(0, held)
    assert mx.array_equal(last(loaded, other, PROMPT[128:]), last(loaded, loaded.make_cache(1), PROMPT)).item()
    other.release(0)
    for part in held:
        part.drop()
    assert other.nbytes == 0


def unused(inputs: Sequence[mx.array], walks: Sequence[Walk]) -> tuple[mx.array, list[list[State]]]:
    raise AssertionError(f"called with {len(inputs)} inputs and {len(walks)} rows")


def test_steps_of_other_layers_are_refused(loaded: LoadedModel) -> None:
    cache = loaded.make_cache(1)
    step = cache.begin(StepPlan((RowPlan(0, (1,), 0, (0,)),)))
    nothing = mx.zeros((1, 1, 1))
    with pytest.raises(PlanError, match="layer 0 keeps a state"):
        step.attend(0, nothing, nothing, nothing, None)
    with pytest.raises(PlanError, match="no state of layer 3"):
        step.recur(3, unused, [nothing])
    cache.commit(0, 0)
    with pytest.raises(PlanError, match="no longer open"):
        step.recur(0, unused, [nothing])


@needs_kernels
@pytest.mark.parametrize("name", ["qwen3_5 mixed", "qwen3_5_moe 4-bit"])
def test_a_long_decode_has_the_same_bits_in_company_alone_and_uncached(tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(write_family(tmp_path, FAMILIES[name]))
    loaded = load(checkpoint, NumericPath.FAST, lambda _: None)
    prompts = random_prompts(seed=4, sizes=(2, 45))
    for prompt, (tokens, logits) in zip(prompts, decode_together(loaded, prompts), strict=True):
        ((alone, logits_alone),) = decode_together(loaded, [prompt])
        assert alone == tokens
        assert mx.array_equal(logits_alone, logits)
        assert mx.array_equal(uncached_logits(loaded, prompt, tokens), logits)


def test_rows_of_one_token_by_operations_of_mlx_are_those_that_they_are_alone(tmp_path: Path) -> None:
    loaded = hybrid(tmp_path, cpu_kernels=False)
    cache, lengths = loaded.make_cache(3), (40, 31, 1)
    for slot, count in enumerate(lengths):
        step_logits(loaded, cache, PROMPT[:count], (), slot)
    found = mx.zeros((0,))
    for _ in range(3):
        plan = StepPlan(tuple(RowPlan(slot, (9,), cache.length(slot), (0,)) for slot in range(3)))
        step = cache.begin(plan)
        found = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
        for slot in range(3):
            cache.commit(slot, 1)
    for slot, count in enumerate(lengths):
        alone = last(loaded, loaded.make_cache(1), (*PROMPT[:count], 9, 9, 9))
        assert np.abs(np.array(found[slot]) - np.array(alone)).max() < 5e-4
