"""Prompts wait for running rows by time, whatever a token of theirs takes."""

import pytest

from worker.pace import FIRST_BURST_TOKENS, FIRST_TOKENS, MIN_BURST_TOKENS, MIN_TOKENS, Pace


def test_before_anything_is_known_a_chunk_is_short():
    assert Pace(0.25).tokens == FIRST_TOKENS


def test_a_chunk_takes_the_time_that_it_may():
    pace = Pace(0.25)
    pace.note(512, 0.5)
    assert pace.tokens == 256


def test_chunks_shrink_as_they_take_longer_and_grow_again():
    pace, sizes = Pace(0.1), list[int]()
    for tokens_per_second in (4000, 2000, 1000, 1000, 1000, 8000, 8000):
        pace.note(tokens_per_second, 1.0)
        sizes.append(pace.tokens)
    assert sizes == sorted(sizes[:5], reverse=True) + sorted(sizes[5:])
    assert sizes[4] == pytest.approx(100, rel=0.25)


@pytest.mark.parametrize("seconds", [1e9, 0.0])
def test_prompts_move_on_any_machine(seconds: float):
    pace = Pace(0.25)
    pace.note(1, seconds)
    assert pace.tokens >= MIN_TOKENS


def test_a_burst_holds_what_can_be_computed_in_it_and_never_nothing():
    pace = Pace(0.25)
    assert pace.tokens_within(0.02) == FIRST_BURST_TOKENS
    pace.note(500, 0.5)
    assert pace.tokens_within(0.02) == 20
    assert pace.tokens_within(0.0) == MIN_BURST_TOKENS
