import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.step import RowPlan
from tests.worker.scheduler_life import sequence
from worker.chunks import REFERENCE_CHUNKING, Chunking, NoSlotError, PromptTurns
from worker.sequence import Sequence, State


def under_way(turns: PromptTurns, request_id: str, prompt_tokens: int, slot: int = 0) -> Sequence:
    subject = sequence(request_id, prompt_tokens)
    subject.slot = slot
    subject.move(State.PREFILLING)
    turns.join(subject)
    return subject


def tick(turns: PromptTurns) -> dict[str, int]:
    """Return how many tokens of whose prompts the next tick computes."""
    chunks = turns.next_chunks()
    for chunk in chunks:
        subject = chunk.sequence
        subject.prefilled += chunk.row.num_tokens
        if subject.prefilled == len(subject.request.prompt_ids):
            subject.move(State.DECODING)
    return {chunk.sequence.request_id: chunk.row.num_tokens for chunk in chunks}


@pytest.mark.parametrize(("num_tokens", "sizes"), [(1, [1]), (2, [1, 1]), (2049, [2048, 1]), (2050, [2048, 1, 1])])
def test_the_reference_path_takes_the_last_token_apart(num_tokens: int, sizes: list[int]):
    turns, found = PromptTurns(REFERENCE_CHUNKING), list[int]()
    under_way(turns, "a", num_tokens)
    while chunks := tick(turns):
        found.append(chunks["a"])
    assert found == sizes


def test_the_reference_path_computes_one_prompt_a_tick():
    turns = PromptTurns(REFERENCE_CHUNKING)
    for name in "ab":
        under_way(turns, name, 3)
    assert [tick(turns) for _ in range(5)] == [{"a": 2}, {"b": 2}, {"a": 1}, {"b": 1}, {}]


def test_a_prompt_is_cut_and_only_its_end_needs_logits():
    turns = PromptTurns(Chunking(3))
    subject = under_way(turns, "a", 5, slot=7)
    first = turns.next_chunks()[0].row
    subject.prefilled = 3
    assert [first, turns.next_chunks()[0].row] == [RowPlan(7, (0, 1, 2), 0, ()), RowPlan(7, (3, 4), 3, (1,))]


def test_short_prompts_that_come_together_are_computed_together():
    turns = PromptTurns(Chunking(64))
    for name, num_tokens in (("a", 20), ("b", 1), ("c", 30)):
        under_way(turns, name, num_tokens)
    assert tick(turns) == {"a": 20, "b": 1, "c": 30}


def test_a_short_prompt_is_computed_at_once_beside_a_long_one():
    turns = PromptTurns(Chunking(512))
    under_way(turns, "long", 4096)
    tick(turns)
    under_way(turns, "short", 20)
    assert tick(turns) == {"short": 20, "long": 492}


def test_short_prompts_leave_half_of_the_budget_to_whose_turn_it_is():
    turns = PromptTurns(Chunking(10))
    under_way(turns, "long", 100)
    for name in "abc":
        under_way(turns, name, 2)
    assert tick(turns) == {"a": 2, "b": 2, "long": 6}


def test_long_prompts_take_turns_and_what_one_leaves_goes_to_the_next():
    turns = PromptTurns(Chunking(10))
    under_way(turns, "a", 16)
    under_way(turns, "b", 17)
    assert [tick(turns) for _ in range(4)] == [{"a": 10}, {"b": 10}, {"a": 6, "b": 4}, {"b": 3}]


def test_no_more_prompts_share_a_tick_than_rows_are_allowed():
    turns = PromptTurns(Chunking(100, max_rows=2))
    for name in "abc":
        under_way(turns, name, 5)
    assert [tick(turns), tick(turns)] == [{"b": 5, "a": 5}, {"c": 5}]


def test_a_prompt_that_ended_has_no_turn():
    turns = PromptTurns(Chunking(4))
    under_way(turns, "a", 9).move(State.ENDED)
    assert turns.next_chunks() == ()


def test_a_prompt_without_a_slot_is_not_computed():
    turns = PromptTurns(Chunking(4))
    under_way(turns, "a", 9).slot = None
    with pytest.raises(NoSlotError):
        turns.next_chunks()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 64), st.none() | st.integers(1, 4))
def test_no_token_of_the_budget_is_left_while_a_prompt_could_use_it(
    lengths: list[int], chunk_tokens: int, max_rows: int | None
):
    turns = PromptTurns(Chunking(chunk_tokens, max_rows))
    left = {subject.request_id: subject for subject in (under_way(turns, str(i), n) for i, n in enumerate(lengths))}
    while left:
        rest = {key: len(subject.request.prompt_ids) - subject.prefilled for key, subject in left.items()}
        shares = tick(turns)
        is_all = shares == rest or len(shares) == max_rows
        assert sum(shares.values()) == chunk_tokens or is_all
        left = {key: subject for key, subject in left.items() if subject.state is State.PREFILLING}


@given(st.integers(1, 32), st.integers(1, 100), st.integers(1, 4))
def test_no_stream_of_short_prompts_takes_the_turns_of_a_long_one(chunk_tokens: int, num_tokens: int, num_short: int):
    turns = PromptTurns(Chunking(chunk_tokens))
    long, short = under_way(turns, "long", num_tokens), list[Sequence]()
    num_ticks = 0
    while long.state is State.PREFILLING:
        short = [subject for subject in short if subject.state is State.PREFILLING]
        short += [under_way(turns, str(num_ticks), 1) for _ in range(num_short - len(short))]
        tick(turns)
        num_ticks += 1
    assert num_ticks <= (1 + num_short) * math.ceil(2 * num_tokens / chunk_tokens)
