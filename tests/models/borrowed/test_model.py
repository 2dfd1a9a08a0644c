"""Models of mlx-lm's as they are served: its logits bit for bit, and rows that do not disturb each other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.borrowed.checkpoint import open_any
from models.borrowed.model import BorrowedError, BorrowedModel
from models.borrowed.stores import BorrowedKeysStore, BorrowedStore
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.errors import ModelError, PlanError
from models.layers.cache import Cache
from models.layers.stores.store import StoreError
from models.registry import LoadedModel, LoadProgress, load
from models.step import NumericPath, RowPlan, StepPlan
from tests.models.borrowed.tiny import CONFIGS, write_borrowed
from tests.models.parity.equality import assert_bit_equal
from tests.models.stepping import assert_same_tokens, greedy, step_logits
from tests.support.tiny_models import write_llama, write_tensors

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 90)]
PLAIN = ("stablelm", "starcoder2", "olmo2")
# Sums in another order.
CLOSE = 5e-4
Q4 = {"group_size": 32, "bits": 4}


def load_borrowed(folder: Path, path: NumericPath = NumericPath.FAST, **options: Any) -> LoadedModel:
    return load(open_any(folder, allow_mlx_lm=True), path, lambda _: None, **options)


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_borrowed(tmp_path / "tiny", request.param)


def whole(loaded: LoadedModel, tokens: Sequence[int]) -> mx.array:
    return step_logits(loaded, loaded.make_cache(1), tuple(tokens), tuple(range(len(tokens))))


def worst(found: mx.array, expected: mx.array) -> float:
    return float(np.abs(np.array(found) - np.array(expected)).max())


@pytest.mark.parametrize("num_prompt_tokens", [1, 48])
def test_logits_are_those_of_mlx_lm_s_own_generation(folder: Path, num_prompt_tokens: int) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    prompt = PROMPT[:num_prompt_tokens]
    theirs = greedy_logits(folder, prompt, 24)
    assert_bit_equal(list(greedy(load_borrowed(folder, NumericPath.REFERENCE), prompt, 24)), theirs)
    assert_same_tokens(list(greedy(load_borrowed(folder), prompt, 24)), theirs, CLOSE)


@pytest.mark.parametrize("model_type", PLAIN)
def test_packed_weights_stay_packed(tmp_path: Path, model_type: str) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    folder = write_borrowed(tmp_path / "tiny", model_type, Q4)
    loaded = load_borrowed(folder, NumericPath.REFERENCE)
    assert_bit_equal(list(greedy(loaded, PROMPT[:48], 24)), greedy_logits(folder, PROMPT[:48], 24))
    plain = load_borrowed(write_borrowed(tmp_path / "plain", model_type)).weights_bytes
    assert loaded.weights_bytes < 0.3 * plain


def test_half_precision_becomes_the_compute_dtype(tmp_path: Path) -> None:
    folder = write_borrowed(tmp_path / "tiny", "olmo2")
    stored: Any = mx.load(str(folder / "model.safetensors"))
    halves = {name: array.astype(mx.bfloat16) for name, array in stored.items()}
    mx.eval(halves)
    write_tensors(folder, halves)
    loaded = load_borrowed(folder)
    assert (loaded.compute_dtype, whole(loaded, PROMPT[:4]).dtype) == ("float32", mx.float32)


def test_says_whose_model_it_is(folder: Path) -> None:
    loaded = load_borrowed(folder)
    is_plain = loaded.checkpoint.architecture in PLAIN
    assert (loaded.implementation, loaded.arithmetic.name) == ("mlx-lm", "mlx")
    assert (loaded.shares_prefixes, loaded.make_cache(1).can_reject) == (is_plain, is_plain)
    with pytest.raises(ModelError):
        _ = loaded.text_checkpoint


def test_progress_counts_bytes_to_the_end(tmp_path: Path) -> None:
    folder, seen = write_borrowed(tmp_path / "tiny", "olmo2", intermediate_size=32_768), list[LoadProgress]()
    loaded = load(open_any(folder, allow_mlx_lm=True), NumericPath.FAST, seen.append)
    done = [progress.bytes_done for progress in seen]
    assert done == sorted(done)
    assert (done[0], done[-1], len(seen) > 3) == (0, loaded.weights_bytes, True)


@pytest.mark.parametrize("size", [1, 7, 33])
def test_chunks_give_the_logits_of_one_step(folder: Path, size: int) -> None:
    loaded = load_borrowed(folder)
    cache, parts = loaded.make_cache(1), list[mx.array]()
    for start in range(0, 60, size):
        chunk = tuple(PROMPT[start : min(start + size, 60)])
        parts.append(step_logits(loaded, cache, chunk, tuple(range(len(chunk)))))
    assert worst(mx.concatenate(parts), whole(loaded, PROMPT[:60])) < CLOSE
    assert (cache.length(0), cache.num_tokens) == (60, 60)


def test_a_row_of_a_ragged_batch_has_the_bits_that_it_has_alone(folder: Path) -> None:
    loaded = load_borrowed(folder)
    together, alone = loaded.make_cache(3), [loaded.make_cache(1) for _ in range(3)]
    for sizes in ([3, 30, 1], [0, 30, 40], [1, 1, 1], [2, 0, 9]):
        rows = [row for row in range(3) if sizes[row]]
        starts = {row: together.length(row) for row in rows}
        wanted = {row: tuple(range(sizes[row]))[-2:] for row in rows}
        tokens = {row: tuple(PROMPT[starts[row] : starts[row] + sizes[row]]) for row in rows}
        plans = tuple(RowPlan(row, tokens[row], starts[row], wanted[row]) for row in rows)
        step = together.begin(StepPlan(plans))
        logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
        for row in rows:
            together.commit(row, sizes[row])
        expected = [step_logits(loaded, alone[row], tokens[row], wanted[row]) for row in rows]
        assert mx.array_equal(logits, mx.concatenate(expected))


def test_tokens_may_come_from_the_device(folder: Path) -> None:
    loaded = load_borrowed(folder)
    cache, other = loaded.make_cache(1), loaded.make_cache(1)
    step_logits(loaded, cache, tuple(PROMPT[:5]))
    step_logits(loaded, other, tuple(PROMPT[:5]))
    step = cache.begin(StepPlan((RowPlan(0, None, 5, (0,)),)), mx.array([PROMPT[5]]))
    found = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
    assert mx.array_equal(found, step_logits(loaded, other, (PROMPT[5],)))


def test_a_slot_that_is_released_starts_anew(folder: Path) -> None:
    loaded = load_borrowed(folder)
    cache = loaded.make_cache(1)
    step_logits(loaded, cache, tuple(PROMPT[:70]))
    assert cache.nbytes > 0
    cache.release(0)
    assert (cache.length(0), cache.nbytes) == (0, 0)
    found = step_logits(loaded, cache, tuple(PROMPT[:20]), tuple(range(20)))
    assert mx.array_equal(found, whole(loaded, PROMPT[:20]))


def test_what_a_step_has_not_built_is_not_there(folder: Path) -> None:
    loaded = load_borrowed(folder)
    cache = loaded.make_cache(1)
    step_logits(loaded, cache, tuple(PROMPT[:9]))
    cache.begin(StepPlan((RowPlan(0, (1, 2), 9, ()),)))
    cache.commit(0, 0)
    found = step_logits(loaded, cache, tuple(PROMPT[9:20]))
    assert worst(found[-1], whole(loaded, PROMPT[:20])[-1]) < CLOSE


# Where caches are keys and values alone.


@pytest.mark.parametrize("model_type", PLAIN)
def test_wrong_guesses_are_dropped(tmp_path: Path, model_type: str) -> None:
    loaded = load_borrowed(write_borrowed(tmp_path / "tiny", model_type))
    cache = loaded.make_cache(1)
    step_logits(loaded, cache, tuple(PROMPT[:40]))
    step = cache.begin(StepPlan((RowPlan(0, (*PROMPT[40:42], 7, 8), 40, (0, 1, 2, 3)),)))
    mx.eval(loaded.model.hidden(step))
    cache.commit(0, 2)
    found = step_logits(loaded, cache, tuple(PROMPT[42:60]), tuple(range(18)))
    assert worst(found, whole(loaded, PROMPT[:60])[42:]) < CLOSE


@pytest.mark.parametrize("model_type", PLAIN)
def test_a_sequence_begins_behind_another_s_blocks(tmp_path: Path, model_type: str) -> None:
    loaded = load_borrowed(write_borrowed(tmp_path / "tiny", model_type))
    cache = loaded.make_cache(2)
    step_logits(loaded, cache, tuple(PROMPT[:80]), ())
    parts = [cache.read(cache.write(part)) for part in cache.share(0)]
    shared = [part for part in parts if part is not None]
    assert (len(shared), cache.usable(shared)) == (2, 2)
    cache.adopt(1, shared)
    cache.release(0)
    found = step_logits(loaded, cache, tuple(PROMPT[64:]), tuple(range(len(PROMPT) - 64)), slot=1)
    assert worst(found, whole(loaded, PROMPT)[64:]) < CLOSE
    more = step_logits(loaded, cache, tuple(PROMPT[:5]), slot=1)
    assert worst(more[-1], whole(loaded, [*PROMPT, *PROMPT[:5]])[-1]) < CLOSE


@pytest.mark.parametrize("model_type", ["olmo3", "mamba"])
def test_nothing_is_shared_where_that_is_not_safe(tmp_path: Path, model_type: str) -> None:
    loaded = load_borrowed(write_borrowed(tmp_path / "tiny", model_type))
    cache = loaded.make_cache(2)
    step_logits(loaded, cache, tuple(PROMPT[:80]), ())
    assert cache.usable(cache.share(0)) == 0


def test_caches_of_two_architectures_do_not_read_each_other_s_parts(tmp_path: Path) -> None:
    caches = [
        load_borrowed(write_borrowed(tmp_path / model_type, model_type)).make_cache(1) for model_type in PLAIN[:2]
    ]
    assert caches[0].fingerprint != caches[1].fingerprint
    assert "mlx-lm 0.32.2 stablelm" in caches[0].fingerprint


def test_stores_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    model = load_borrowed(write_borrowed(tmp_path / "tiny", "olmo3")).model
    assert isinstance(model, BorrowedModel)
    stores = [model._make_store(number) for number in range(4)]
    closed, plain = stores[0], stores[3]
    assert isinstance(closed, BorrowedStore)
    assert isinstance(plain, BorrowedKeysStore)
    for call in refused_calls(closed, plain):
        with pytest.raises(StoreError):
            call()


def refused_calls(closed: BorrowedStore, plain: BorrowedKeysStore) -> list[Callable[[], object]]:
    return [
        lambda: closed.trim(1),
        lambda: closed.extract(0),
        lambda: closed.adopt(1, [None]),
        lambda: plain.trim(1),
        lambda: plain.extract(0),
        lambda: plain.adopt(1, [None]),
    ]


def test_room_is_counted_as_in_any_cache(tmp_path: Path) -> None:
    loaded = load_borrowed(write_borrowed(tmp_path / "tiny", "stablelm"))
    cache: Cache = loaded.make_cache(2, 100)
    assert (cache.reserve(0, 60), cache.reserve(1, 60), cache.reserve(1, 40)) == (True, False, True)
    assert loaded.token_bytes == 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, float32


@pytest.mark.parametrize(("model_type", "grows"), [("stablelm", True), ("olmo3", True), ("mamba", False)])
def test_memory_is_foreseen_for_windows_and_states_too(tmp_path: Path, model_type: str, grows: bool) -> None:
    sizes = load_borrowed(write_borrowed(tmp_path / "tiny", model_type)).kv_sizes
    assert sizes.rows_bytes(100, 1) > 0
    assert (sizes.rows_bytes(1000, 1) > sizes.rows_bytes(100, 1)) == grows


# What is refused.


@pytest.mark.parametrize("scheme", ["8", "turbo"])
def test_keys_and_values_stay_as_they_are_computed(tmp_path: Path, scheme: str) -> None:
    folder = write_borrowed(tmp_path / "tiny", "stablelm")
    with pytest.raises(KVSchemeError, match="mlx-lm computes"):
        load_borrowed(folder, kv_scheme=KVScheme.from_text(scheme))


def drop_a_tensor(tensors: dict[str, mx.array]) -> None:
    del tensors["model.norm.weight"]


def add_a_tensor(tensors: dict[str, mx.array]) -> None:
    tensors["model.norm.other"] = mx.ones(3)


def cut_a_tensor(tensors: dict[str, mx.array]) -> None:
    tensors["model.norm.weight"] = mx.ones(3)


@pytest.mark.parametrize("change", [drop_a_tensor, add_a_tensor, cut_a_tensor])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: Callable[[dict[str, mx.array]], None]) -> None:
    folder = write_borrowed(tmp_path / "tiny", "olmo2")
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors: dict[str, mx.array] = dict(stored)
    mx.eval(tensors)
    change(tensors)
    write_tensors(folder, tensors)
    with pytest.raises(CheckpointRejected) as caught:
        load_borrowed(folder)
    assert (caught.value.key, caught.value.problem) == ("model_type", "mlx-lm makes no model of it (ValueError)")


def test_code_that_lies_beside_is_not_run(tmp_path: Path) -> None:
    folder = write_borrowed(
        tmp_path / "tiny", "stablelm", auto_map={"AutoModelForCausalLM": "modeling.Model"}, trust_remote_code=True
    )
    marker = tmp_path / "ran"
    for name in ("modeling.py", "stablelm.py", "tokenization.py", "__init__.py"):
        (folder / name).write_text(f"open({str(marker)!r}, 'w').close()\nModel = ModelArgs = None\n")
    assert whole(load_borrowed(folder), PROMPT[:3]).shape == (3, 288)
    assert not marker.exists()


def test_a_step_of_another_model_s_cache_is_refused(tmp_path: Path) -> None:
    ours = load(open_any(write_llama(tmp_path / "ours"), allow_mlx_lm=True), NumericPath.FAST, lambda _: None)
    loaded = load_borrowed(write_borrowed(tmp_path / "tiny", "stablelm"))
    step = ours.make_cache(1).begin(StepPlan((RowPlan(0, (1,), 0, (0,)),)))
    with pytest.raises(BorrowedError):
        loaded.model.hidden(step)
    cache = loaded.make_cache(1)
    step = cache.begin(StepPlan((RowPlan(0, (1,), 0, (0,)),)))
    cache.commit(0, 1)
    with pytest.raises(PlanError, match="no longer open"):
        loaded.model.hidden(step)


def test_nothing_is_compiled_on_the_fast_path_of_a_cpu_and_what_follows_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = write_borrowed(tmp_path / "tiny", "stablelm"), list[str]()
    monkeypatch.setattr(mx, "disable_compile", lambda: calls.append("off"))
    monkeypatch.setattr(mx, "enable_compile", lambda: calls.append("on"))
    whole(load_borrowed(folder, NumericPath.REFERENCE), PROMPT[:3])
    assert calls == []
    whole(load_borrowed(folder), PROMPT[:3])
    assert calls == ["off", "on"] * 2
