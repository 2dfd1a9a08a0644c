"""Inputs of any lengths and of several requests share steps, and each comes out as if it were alone."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.pooling import PoolingMode
from models.embedding.vectors import VectorForm
from models.layers.cache import Step
from models.step import NumericPath
from tests.models.families import Q4
from tests.support.tiny_embedders import DIMENSIONS, TIED, write_embedder, write_reranker
from tests.support.tiny_families import Tiny
from tests.support.tiny_models import VOCAB_SIZE
from tests.worker.embedding.driving import LAST, Driven, asking, load_encoder
from tests.worker.text_models import changed
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.request import VectorWish
from worker.errors import InternalError, InvalidField
from worker.events import Completed, Event, Failed, Started
from worker.text_settings import TextSettings

SMALL_STEPS = TextSettings(prefill_chunk_tokens=100, max_context_tokens=1000)
RAW = VectorForm(DIMENSIONS, is_normalized=False)
MODES: dict[str, VectorWish] = {
    **{mode.value: VectorWish(mode, RAW) for mode in PoolingMode},
    "normalized": LAST,
    "per token": VectorWish(None, RAW),
}
MODELS: dict[str, Tiny] = {
    "dense": Tiny("qwen3", TIED),
    "packed": Tiny("qwen3", TIED, Q4),
    "window": Tiny("mistral", {"sliding_window": 24, **TIED}),
}


def ragged(number: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Return the tokens of so many inputs, of lengths from 1 on."""
    chance = random.Random(seed)
    return [[chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(1, longest))] for _ in range(number)]


def failure_of(events: list[Event]) -> Exception:
    (failed,) = (event for event in events if isinstance(event, Failed))
    return failed.error


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedEncoder:
    return load_encoder(write_embedder(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def driven(loaded: LoadedEncoder) -> Iterator[Driven]:
    made = Driven(loaded, SMALL_STEPS)
    yield made
    made.assert_nothing_is_held()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", MODELS)
def test_a_batch_of_64_equals_64_single_calls_bit_for_bit(tmp_path: Path, model: str, mode: str) -> None:
    loaded = load_encoder(write_embedder(tmp_path / "tiny", tiny=MODELS[model]))
    inputs = ragged(64, 40)

    (together,) = Driven(loaded).encode(asking("batch", *inputs, wish=MODES[mode]))
    alone = Driven(loaded)
    singles = [alone.encode(asking(f"{index}", ids, wish=MODES[mode]))[0][0] for index, ids in enumerate(inputs)]

    assert together == singles
    assert len(set(together)) > 50


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_where_an_input_is_cut_changes_no_bit(loaded: LoadedEncoder, mode: str, seed: int) -> None:
    inputs = ragged(12, 900, seed)
    wish = MODES[mode]

    (whole,) = Driven(loaded, TextSettings(prefill_chunk_tokens=1000)).encode(asking("r", *inputs, wish=wish))
    cut = Driven(loaded, SMALL_STEPS).encode(*(asking(f"{n}", ids, wish=wish) for n, ids in enumerate(inputs)))

    assert [values for (values,) in cut] == whole


def test_the_reference_path_gives_the_same_vectors_within_rounding(tmp_path: Path) -> None:
    folder, inputs = write_embedder(tmp_path / "tiny"), ragged(8, 300)
    fast, reference = (Driven(load_encoder(folder, path)) for path in (NumericPath.FAST, NumericPath.REFERENCE))
    for each in (fast, reference):
        each.encode(asking("r", *inputs))
    difference = np.concatenate(fast.vectors("r")) - np.concatenate(reference.vectors("r"))
    assert np.abs(difference).max() < 5e-5
    assert max(len(plan.pieces) for plan in fast.plans) > 1
    assert {len(plan.pieces) for plan in reference.plans} == {1}


def test_yes_and_no_are_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    loaded = load_encoder(write_reranker(tmp_path / "tiny"), is_reranker=True)
    inputs = ragged(20, 60)
    together = Driven(loaded)
    together.encode(asking("r", *inputs, wish=None))
    alone = Driven(loaded)
    alone.encode(*(asking(f"{index}", ids, wish=None) for index, ids in enumerate(inputs)))
    singles = [alone.scores(f"{index}")[0] for index in range(len(inputs))]
    assert [(each.yes, each.no) for each in together.scores("r")] == [(each.yes, each.no) for each in singles]


def test_a_request_is_told_its_start_its_vectors_and_what_they_took(driven: Driven) -> None:
    driven.encode(asking("r", [1, 2, 3], [4]))
    started, *embedded, completed = driven.events["r"]
    assert isinstance(started, Started)
    assert isinstance(completed, Completed)
    assert started.prompt_tokens == completed.usage.prompt_tokens == 4
    assert len(embedded) == 2
    assert completed.timing.total_us == completed.timing.queue_us + completed.timing.prefill_us > 0
    assert completed.timing.time_to_first_token_us == completed.timing.decode_us == 0


def test_steps_are_full_and_bounded(driven: Driven) -> None:
    driven.encode(asking("r", *ragged(64, 40)))
    sizes = [sum(piece.count for piece in plan.pieces) for plan in driven.plans]
    assert max(sizes) == 100
    assert sum(sizes) / len(sizes) > 80


def test_a_short_request_does_not_wait_for_a_long_one(driven: Driven) -> None:
    driven.ask(asking("long", *ragged(50, 90), list(range(200)) * 4))
    driven.tick_once()
    driven.ask(asking("short", [1, 2, 3]))
    driven.tick_once()
    assert isinstance(driven.events["short"][-1], Completed)
    driven.finish()


def test_two_large_requests_get_the_same_share(driven: Driven) -> None:
    driven.ask(asking("a", *ragged(100, 60, 1)), asking("b", *ragged(100, 60, 2)))
    taken = Counter[str]()
    for _ in range(20):
        driven.tick_once()
        for piece in driven.plans[-1].pieces:
            taken[piece.key] += piece.count
    assert taken.total() > 1500
    assert abs(taken["a"] - taken["b"]) <= 100
    driven.finish()


def test_a_higher_priority_goes_first(driven: Driven) -> None:
    driven.ask(asking("low", *ragged(40, 60)), asking("high", *ragged(40, 60), priority=5))
    driven.finish()
    last_high = max(number for number, plan in enumerate(driven.plans) if "high" in plan.keys)
    first_low = min(number for number, plan in enumerate(driven.plans) if "low" in plan.keys)
    assert first_low >= last_high - 1


def test_a_dropped_request_holds_nothing_wherever_it_was(driven: Driven) -> None:
    driven.ask(asking("cut", list(range(250)) * 3), asking("waits", [1]), asking("stays", [5, 6]))
    driven.tick_once()
    driven.cancel("cut")
    driven.finish()
    assert driven.values("stays") == driven.encode(asking("again", [5, 6]))[0]


def test_no_numbers_end_the_request_that_they_are_of_alone(loaded: LoadedEncoder) -> None:
    def spoil(step: Step, hidden: mx.array) -> mx.array:
        return mx.where((step.tokens == 7)[..., None], float("nan"), hidden)

    driven = Driven(replace(loaded, model=changed(loaded.model, spoil)), SMALL_STEPS)
    driven.ask(asking("bad", [5, 7], [1], [2] * 300), asking("good", [1, 2], [3]))
    driven.finish()

    assert isinstance(failure_of(driven.events["bad"]), InternalError)
    assert driven.values("good") == Driven(loaded).encode(asking("r", [1, 2], [3]))[0]
    driven.assert_nothing_is_held()


def test_values_beyond_half_floats_are_told_by_the_field(loaded: LoadedEncoder) -> None:
    def enlarge(_: Step, hidden: mx.array) -> mx.array:
        return hidden * 1e6

    driven = Driven(replace(loaded, model=changed(loaded.model, enlarge)), SMALL_STEPS)
    wish = VectorWish(PoolingMode.LAST, VectorForm(DIMENSIONS, is_normalized=False, dtype="<f2"))
    driven.ask(asking("bad", [5], wish=wish), asking("good", [1]))
    driven.finish()

    error = failure_of(driven.events["bad"])
    assert isinstance(error, InvalidField)
    assert error.field == "options.vector_type"
    assert isinstance(driven.events["good"][-1], Completed)


def test_a_step_that_breaks_ends_those_who_were_in_it(loaded: LoadedEncoder) -> None:
    calls = [0]

    def break_second(_: Step, hidden: mx.array) -> mx.array:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("broken")
        return hidden

    driven = Driven(replace(loaded, model=changed(loaded.model, break_second)), SMALL_STEPS)
    driven.ask(asking("a", *ragged(20, 60)))
    driven.tick_once()
    driven.ask(asking("later", [1]), asking("idle", [1], priority=-1))
    with pytest.raises(RuntimeError, match="broken"):
        driven.tick_once()
    for key in driven.plans[-1].keys:
        driven.cancel(key)
    driven.workload.recover()
    driven.finish()
    driven.assert_nothing_is_held()


@pytest.mark.parametrize("inputs", [[[]], [[1], [VOCAB_SIZE]], [[1] * 1001]])
def test_what_would_be_read_outside_the_arrays_is_not_admitted(driven: Driven, inputs: list[list[int]]) -> None:
    with pytest.raises(InvalidField):
        driven.ask(asking("r", *inputs))


def test_more_requests_than_run_side_by_side_take_turns(loaded: LoadedEncoder) -> None:
    driven = Driven(loaded, TextSettings(max_batch_rows=2))
    driven.ask(*(asking(f"{index}", [index]) for index in range(6)))
    driven.finish()
    assert [len(plan.keys) for plan in driven.plans] == [2, 2, 2]


@pytest.mark.parametrize("step_tokens", [16, 100])
def test_requests_move_however_slow_the_machine_is(loaded: LoadedEncoder, step_tokens: int) -> None:
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=step_tokens, prefill_gap_s=1e-9))
    driven.encode(asking("a", *ragged(6, 150, 1)), asking("b", *ragged(6, 150, 2)))
    sizes = [sum(piece.count for piece in plan.pieces) for plan in driven.plans]
    assert max(sizes[1:11]) <= 32  # before the first nothing was measured, and at the end only one is left
    driven.assert_nothing_is_held()
