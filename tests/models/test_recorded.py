"""A recorded model gives the bits of the model itself, and steps in aside where it cannot be recorded."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.layers.cache import AttentionLayer, Step
from models.recorded import RecordedModel
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from models.text_model import TextModel
from native import kernels
from tests.models.variants import VARIANTS, WINDOWED
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
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
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
