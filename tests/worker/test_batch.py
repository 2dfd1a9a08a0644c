"""Steps of many rows, against each row by itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.layers.cache import Step
from models.registry import LoadedModel
from models.step import NumericPath, RowPlan
from tests.models.stepping import greedy
from tests.worker.text_engines import request
from tests.worker.text_models import Models, changed, tiny
from tests.worker.text_rows import advance, prefill, ready, row
from worker.batch import Batch
from worker.masks import packed
from worker.restriction import Restriction
from worker.row import Row, RowOrderError

PROMPTS = ["the cat", "a", "some other prompt", "the cat"]
REQUESTS = [request(str(number), prompt) for number, prompt in enumerate(PROMPTS)]


def expected(loaded: LoadedModel, num_tokens: int) -> list[list[int]]:
    return [[token for token, _ in greedy(loaded, each.prompt_ids, num_tokens)] for each in REQUESTS]


def decode(batch: Batch, rows: list[Row], *, is_ahead: bool) -> list[list[int]]:
    """Do one decode step: on tokens that were read, or ahead of them."""
    if is_ahead:
        batch.build(rows, is_ahead=True)
        batch.start()
    found = advance(rows)
    if not is_ahead:
        batch.build(rows, is_ahead=False)
    batch.draw(rows)
    return found


@pytest.mark.parametrize("is_ahead", [False, True], ids=["read first", "ahead"])
@pytest.mark.parametrize("kind", ["plain", "window", "rows", "8"])
def test_the_tokens_are_those_of_one_forward_after_the_other(models: Models, kind: str, is_ahead: bool):
    loaded = models(kind)
    batch, rows, _ = ready(loaded, *REQUESTS)
    for _ in range(6):
        decode(batch, rows, is_ahead=is_ahead)
    assert [each.sequence.output_ids for each in rows] == expected(loaded, 6)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["read first", "ahead"])
def test_rows_in_another_order_and_rows_that_sit_out_are_those_they_were(loaded: LoadedModel, is_ahead: bool):
    batch, rows, _ = ready(loaded, *REQUESTS)
    for chosen in ([3, 1], [0, 1, 2, 3], [2, 0], [1], [3, 2, 1, 0]):
        decode(batch, [rows[number] for number in chosen], is_ahead=is_ahead)
    for each, tokens in zip(rows, expected(loaded, 6), strict=True):
        assert each.sequence.output_ids == tokens[: len(each.sequence.output_ids)]
    assert [len(each.sequence.output_ids) for each in rows] == [3, 4, 3, 3]


def test_a_row_that_ended_is_left_out_of_the_draw_and_adds_nothing(loaded: LoadedModel):
    batch, rows, cache = ready(loaded, *REQUESTS)
    batch.build(rows, is_ahead=True)
    batch.start()
    advance(rows)
    batch.draw(rows[1:])
    assert cache.length(0) == len(PROMPTS[0])
    advance(rows[1:])
    assert [each.sequence.output_ids for each in rows[1:]] == [tokens[:2] for tokens in expected(loaded, 2)[1:]]
    with pytest.raises(RowOrderError):
        rows[0].take()


def test_prompts_in_chunks_share_steps_and_only_complete_ones_are_drawn(loaded: LoadedModel):
    cache = loaded.make_cache(2)
    batch = Batch(loaded, cache)
    short, long = row(cache, REQUESTS[0], 0), row(cache, REQUESTS[2], 1)
    first = long.sequence.request.prompt_ids[:5]
    complete = batch.prefill(
        [long, short], [RowPlan(1, first, 0, ()), RowPlan(0, short.sequence.request.prompt_ids, 0, (6,))]
    )
    assert complete == [short]
    assert (long.sequence.prefilled, short.sequence.is_prefilled) == (5, True)
    batch.draw(complete)
    rest = long.sequence.request.prompt_ids[5:]
    assert batch.prefill([long], [RowPlan(1, rest, 5, (len(rest) - 1,))]) == [long]
    batch.draw([long])
    tokens = expected(loaded, 1)
    assert advance([short, long]) == [tokens[0], tokens[2]]


def test_a_mask_is_for_its_row_alone(loaded: LoadedModel):
    cache = loaded.make_cache(4)
    batch = Batch(loaded, cache)
    rows = [row(cache, each, slot) for slot, each in enumerate(REQUESTS)]
    plans = [RowPlan(each.slot, each.sequence.request.prompt_ids, 0, (len(PROMPTS[each.slot]) - 1,)) for each in rows]
    batch.prefill(rows, plans)
    only_7 = packed(np.arange(288) == 7)
    rows[1].restriction = Restriction(mask=only_7)
    batch.draw(rows)
    tokens = expected(loaded, 1)
    assert advance(rows) == [tokens[0], [7], tokens[2], tokens[3]]


def test_on_the_reference_path_each_row_is_a_step_of_its_own(tmp_path: Path):
    widths: list[int] = []

    def note(step: Step, hidden: object) -> object:
        widths.append(len(step.plan.rows))
        return hidden

    reference = tiny(tmp_path, path=NumericPath.REFERENCE)
    cache = reference.make_cache(2)
    batch = Batch(changed(reference, note), cache)  # pyright: ignore[reportArgumentType]
    rows = [row(cache, REQUESTS[number], number) for number in range(2)]
    for each in rows:
        prefill(batch, [each])
    for _ in range(4):
        decode(batch, rows, is_ahead=False)
    assert set(widths) == {1}
    assert [each.sequence.output_ids for each in rows] == expected(reference, 4)[:2]


def test_a_draw_of_a_row_that_was_not_built_is_refused(loaded: LoadedModel):
    batch, rows, _ = ready(loaded, *REQUESTS)
    advance(rows)
    batch.build(rows[:1], is_ahead=False)
    with pytest.raises(RowOrderError):
        batch.draw(rows)


def test_what_was_built_is_forgotten_after_a_failure(loaded: LoadedModel):
    batch, rows, _ = ready(loaded, *REQUESTS)
    advance(rows)
    batch.build(rows, is_ahead=False)
    batch.drop()
    with pytest.raises(RowOrderError):
        batch.draw(rows)


def test_rows_with_guesses_and_without_share_a_step(loaded: LoadedModel):
    guessing = [replace(each, max_draft_tokens=8) if number % 2 else each for number, each in enumerate(REQUESTS)]
    guessing[1] = replace(guessing[1], prompt_ids=REQUESTS[2].prompt_ids * 3)
    batch, rows, cache = ready(loaded, *guessing)
    alone = [[token for token, _ in greedy(loaded, each.prompt_ids, 12)] for each in guessing]
    for _ in range(5):
        decode(batch, rows, is_ahead=False)
    for slot, (each, tokens) in enumerate(zip(rows, alone, strict=True)):
        output = each.sequence.output_ids
        assert output[:12] == tokens[: len(output)]
        assert cache.length(slot) == len(guessing[slot].prompt_ids) + len(output) - (1 if each.drafts else 0)
