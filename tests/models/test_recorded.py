"""A recorded model gives the bits of the model itself, and steps in aside where it cannot be recorded."""

import gc
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint.checkpoint import open_checkpoint
from models.errors import PlanError
from models.layers.cache import Cache, KeptLayer, Step
from models.recorded import RecordedModel
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from models.text_model import TextModel
from native import kernels
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.failures import INDEX_OUTSIDE, problem_of
from tests.support.tiny_models import write_llama

EVERY = {**VARIANTS, **WINDOWED}
pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


class Counted:
    """Counts how often a graph is built, which may end in an operation of MLX's own."""

    def __init__(self, model: TextModel, *, is_foreign: bool = False) -> None:
        self._model = model
        self._is_foreign = is_foreign
        self.num_built = 0

    @property
    def attention_layers(self) -> tuple[KeptLayer, ...]:
        return self._model.attention_layers

    def hidden(self, step: Step) -> mx.array:
        self.num_built += 1
        hidden = self._model.hidden(step)
        return hidden * 2 if self._is_foreign else hidden

    def head(self, hidden: mx.array) -> mx.array:
        return self._model.head(hidden)


def load_recorded(folder: Path, variant: str = "4-bit") -> tuple[LoadedModel, RecordedModel, TextModel]:
    """Return a loaded model, its recorded graph and the graph that is recorded."""
    loaded = load(open_checkpoint(write_llama(folder, **EVERY[variant])), NumericPath.FAST, lambda _: None)
    assert isinstance(loaded.model, RecordedModel)
    return loaded, loaded.model, loaded.model.graph


def logits_of(loaded: LoadedModel, model: TextModel, seed: int = 3) -> list[np.ndarray]:
    """Return the logits of some steps of two sequences, with chunks of any size and inner ones between them."""
    cache, rng = loaded.make_cache(2), np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for number in range(8):
        counts = [int(count) for count in rng.integers(1, 45, 2)]
        plans = [
            RowPlan(slot, tuple(map(int, rng.integers(0, 250, count))), cache.length(slot), wanted)
            for slot, (count, wanted) in enumerate(zip(counts, ((0,), ()) if number % 2 else ((), ()), strict=True))
        ]
        step = cache.begin(StepPlan(tuple(plans)))
        hidden = model.hidden(step)
        if number % 2:
            found.append(np.array(model.head(step.select(hidden))))
        else:
            mx.eval(step.state())
        for slot, count in enumerate(counts):
            cache.commit(slot, count)
    return found


@pytest.mark.parametrize("variant", EVERY)
def test_has_the_bits_of_the_graph(variant: str, tmp_path: Path) -> None:
    loaded, recorded, graph = load_recorded(tmp_path / "model", variant)

    pairs = zip(logits_of(loaded, recorded), logits_of(loaded, graph), strict=True)

    assert all(np.array_equal(one.view(np.uint32), other.view(np.uint32)) for one, other in pairs)


def test_builds_the_graph_once_for_all_steps_and_caches(tmp_path: Path) -> None:
    loaded, _, graph = load_recorded(tmp_path / "model")
    counted = Counted(graph)
    recorded = RecordedModel(counted)

    first, again = logits_of(loaded, recorded), logits_of(loaded, recorded)

    assert counted.num_built == 1
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_model_that_cannot_be_recorded_is_stepped_as_it_is(tmp_path: Path) -> None:
    loaded, _, graph = load_recorded(tmp_path / "model")
    foreign = Counted(graph, is_foreign=True)

    pairs = zip(logits_of(loaded, RecordedModel(foreign)), logits_of(loaded, foreign), strict=True)

    assert all(np.array_equal(one, other) for one, other in pairs)
    assert foreign.num_built == 16


def test_an_inner_part_of_a_prompt_writes_what_the_next_step_reads(tmp_path: Path) -> None:
    loaded, recorded, graph = load_recorded(tmp_path / "model")
    found: list[np.ndarray] = []
    for model in (recorded, graph, recorded):
        cache = loaded.make_cache(1)
        for tokens, wanted in (((1, 2, 3), ()), ((4,), (0,))):
            step = cache.begin(StepPlan((RowPlan(0, tokens, cache.length(0), wanted),)))
            hidden = model.hidden(step)
            cache.commit(0, len(tokens))
            if wanted:
                found.append(np.array(model.head(hidden)))
            else:
                mx.eval(step.state())

    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


# Steps of any kind: rows of any sizes and in any order, tokens that are not accepted, slots that begin anew.

NUM_SLOTS, ROOM, STATM = 3, 300, Path("/proc/self/statm")


def some_plan(dice: random.Random, cache: Cache) -> StepPlan:
    rows: list[RowPlan] = []
    for slot in dice.sample(range(NUM_SLOTS), dice.randint(1, NUM_SLOTS)):
        count = dice.choice([1, 1, 1, 2, 5, 31, 32, 33, 70])
        if cache.length(slot) + count > ROOM or dice.random() < 0.1:
            cache.release(slot)
        wanted = sorted(dice.sample(range(count), dice.randint(0, min(count, 3))))
        tokens = tuple(dice.randrange(250) for _ in range(count))
        rows.append(RowPlan(slot, tokens, cache.length(slot), tuple(wanted)))
    return StepPlan(tuple(rows))


def walk(loaded: LoadedModel, model: TextModel, seed: int, num_steps: int) -> Iterator[np.ndarray]:
    """Yield the logits of random steps of a cache of their own."""
    dice, cache = random.Random(seed), loaded.make_cache(NUM_SLOTS)
    for _ in range(num_steps):
        step = cache.begin(some_plan(dice, cache))
        hidden = model.hidden(step)
        if any(row.logits_at for row in step.plan.rows):
            yield np.array(model.head(step.select(hidden))).view(np.uint32)
        else:
            mx.eval(step.state())
        for row in step.plan.rows:
            cache.commit(row.slot, dice.randint(1, row.num_tokens))


def are_equal(found: Iterator[np.ndarray], expected: Iterator[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip_longest(found, expected))


@pytest.mark.parametrize("variant", ["4-bit", "4-bit window", "biases", "window"])
def test_any_steps_have_the_bits_of_the_graph(variant: str, tmp_path: Path) -> None:
    loaded, _, graph = load_recorded(tmp_path / "model", variant)

    @settings(max_examples=15)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        assert are_equal(walk(loaded, RecordedModel(graph), seed, 12), walk(loaded, graph, seed, 12))

    check()


def test_caches_of_one_model_take_turns(tmp_path: Path) -> None:
    loaded, recorded, graph = load_recorded(tmp_path / "model", "4-bit window")

    pairs = zip(walk(loaded, recorded, 1, 20), walk(loaded, recorded, 2, 20), strict=False)
    found = list(pairs)

    assert len(found) > 10
    assert are_equal(iter([first for first, _ in found]), iter(list(walk(loaded, graph, 1, 20))[: len(found)]))
    assert are_equal(iter([second for _, second in found]), iter(list(walk(loaded, graph, 2, 20))[: len(found)]))


def test_threads_may_share_a_model(tmp_path: Path) -> None:
    loaded, _, graph = load_recorded(tmp_path / "model")
    fresh = RecordedModel(graph)
    expected = [list(walk(loaded, graph, seed, 40)) for seed in range(3)]  # first: what it loaded is of this thread

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda seed: list(walk(loaded, fresh, seed, 40)), range(3)))

    for logits, wanted in zip(found, expected, strict=True):
        assert are_equal(iter(logits), iter(wanted))


@pytest.mark.parametrize("fate", ["fails", "is never computed"])
def test_whatever_becomes_of_the_first_step_the_next_are_right(fate: str, tmp_path: Path) -> None:
    loaded, _, graph = load_recorded(tmp_path / "model")
    fresh, cache = RecordedModel(graph), loaded.make_cache(1)
    step = cache.begin(StepPlan((RowPlan(0, (1, 2, 1 << 20), 0, (2,)),)))
    logits = fresh.head(fresh.hidden(step))
    if fate == "fails":
        assert problem_of(logits) == INDEX_OUTSIDE

    assert are_equal(walk(loaded, fresh, 5, 10), walk(loaded, graph, 5, 10))


def test_a_step_that_is_no_longer_open_is_refused(tmp_path: Path) -> None:
    loaded, recorded, _ = load_recorded(tmp_path / "model")
    cache = loaded.make_cache(1)
    for plan in (StepPlan((RowPlan(0, (1, 2), 0, (1,)),)), StepPlan((RowPlan(0, (3,), 2, (0,)),))):
        step = cache.begin(plan)
        mx.eval(recorded.hidden(step))
        cache.commit(0, step.plan.rows[0].num_tokens)
        with pytest.raises(PlanError, match="no longer open"):
            recorded.hidden(step)


# Memory.


@pytest.mark.skipif(not STATM.exists(), reason="the kernel tells no sizes")
def test_a_cache_is_freed_though_its_step_is_still_computed(tmp_path: Path) -> None:
    def mapped_bytes() -> int:
        return int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    loaded, recorded, _ = load_recorded(tmp_path / "model")
    logits_of(loaded, recorded)
    pool_bytes = (1 << 22) * loaded.token_bytes
    gc.collect()  # what other tests left
    before = mapped_bytes()
    for _ in range(4):
        cache = loaded.make_cache(1, 1 << 22)
        step = cache.begin(StepPlan((RowPlan(0, tuple(range(200)), 0, (199,)),)))
        hidden = recorded.hidden(step)
        assert mapped_bytes() - before >= pool_bytes
        cache.commit(0, 200)
        mx.async_eval(hidden)
        del cache, step, hidden
    mx.synchronize()

    assert mapped_bytes() - before < pool_bytes // 4


def test_steps_of_changing_sizes_leave_nothing_behind(tmp_path: Path) -> None:
    def active_bytes() -> int:
        gc.collect()  # what other tests left
        mx.synchronize()
        return mx.get_active_memory()

    loaded, recorded, _ = load_recorded(tmp_path / "model")
    logits_of(loaded, recorded)
    before = active_bytes()
    for _ in walk(loaded, recorded, 7, 400):
        pass

    assert active_bytes() == before


def test_a_long_step_takes_less_than_half_of_what_its_graph_takes(tmp_path: Path) -> None:
    loaded, recorded, graph = load_recorded(tmp_path / "model")
    logits_of(loaded, recorded)
    peaks: list[int] = []
    for model in (recorded, graph):
        step = loaded.make_cache(1).begin(StepPlan((RowPlan(0, (7,) * 2048, 0, (2047,)),)))
        mx.synchronize()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(model.hidden(step))
        peaks.append(mx.get_peak_memory() - before)

    assert peaks[0] < peaks[1] / 2
