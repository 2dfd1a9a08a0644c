"""One row on the device."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.layers.cache import KVCache, Step
from models.registry import TextModel, load
from models.step import NumericPath, RowPlan
from tests.support.tiny_models import write_llama
from worker.row import LogitsNotFiniteError, Row, RowOrderError
from worker.sequence import SamplingSettings, Sequence, State, StoppingSettings, TextRequest


@pytest.fixture
def model(tmp_path: Path) -> TextModel:
    return load(open_checkpoint(write_llama(tmp_path / "llama")), NumericPath.FAST, lambda _: None).model


def started_row(model: TextModel) -> tuple[Row, KVCache]:
    """Return a row whose prompt of two tokens is computed and whose first token is sampled."""
    request = TextRequest("r1", (7, 8), SamplingSettings(temperature=0.0), StoppingSettings(9))
    sequence = Sequence(request, lambda _: b"", 100)
    sequence.slot = 0
    sequence.move(State.PREFILLING)
    cache = model.make_cache(1)
    row = Row(sequence, model, cache, NumericPath.FAST)
    row.prefill(RowPlan(0, (7, 8), 0, (1,)))
    row.sample(None)
    return row, cache


def pipelined(row: Row, count: int) -> list[int]:
    token_ids: list[int] = []
    for _ in range(count):
        row.build()
        row.start()
        token_ids.append(row.read())
        row.sequence.advance(token_ids[-1])
        row.accept(token_ids[-1])
        row.sample(None)
    return token_ids


def test_pipelined_tokens_are_those_of_one_forward_after_the_other(model: TextModel):
    row, _ = started_row(model)
    found = pipelined(row, 6)
    token_ids = [7, 8]
    for _ in range(6):
        cache = model.make_cache(1)
        other, _ = started_row(model)
        other.sequence.slot, other.sequence.prefilled = 0, 0
        fresh = Row(other.sequence, model, cache, NumericPath.FAST)
        fresh.prefill(RowPlan(0, tuple(token_ids), 0, (len(token_ids) - 1,)))
        fresh.sample(None)
        token_ids.append(fresh.read())
    assert found == token_ids[2:]


def test_an_accepted_token_is_committed(model: TextModel):
    row, cache = started_row(model)
    pipelined(row, 3)
    assert cache.length(0) == 5


def test_a_forward_of_a_token_that_ended_the_sequence_is_dropped(model: TextModel):
    row, cache = started_row(model)
    row.build()
    row.start()
    row.read()
    cache.commit(0, 0)
    assert cache.length(0) == 2


@pytest.mark.parametrize(
    "verb", [Row.build, Row.start, Row.read, lambda row: row.sample(None)], ids=["build", "start", "read", "sample"]
)
def test_verbs_out_of_order_are_refused(model: TextModel, verb: Callable[[Row], object]):
    request = TextRequest("r1", (7,), SamplingSettings(), StoppingSettings(1))
    row = Row(Sequence(request, lambda _: b"", 100), model, model.make_cache(1), NumericPath.FAST)
    with pytest.raises(RowOrderError):
        verb(row)


class BlankModel:
    def __init__(self, model: TextModel) -> None:
        self._model = model

    def make_cache(self, num_slots: int) -> KVCache:
        return self._model.make_cache(num_slots)

    def hidden(self, step: Step) -> mx.array:
        return self._model.hidden(step)

    def head(self, hidden: mx.array) -> mx.array:
        return self._model.head(hidden) * float("nan")


def test_logits_that_are_not_numbers_give_an_error_and_no_token(model: TextModel):
    row, _ = started_row(BlankModel(model))
    with pytest.raises(LogitsNotFiniteError):
        row.read()
