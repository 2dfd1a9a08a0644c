import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.processors import Processors, TokenWindow, process
from worker.sequence import SamplingSettings

LOGITS = [2.0, -2.0, 1.0, 0.5]


def applied(
    settings: SamplingSettings, prompt_ids: tuple[int, ...] = (), output_ids: tuple[int, ...] = ()
) -> list[float]:
    return processed([made(settings, prompt_ids, output_ids)])[0]


def made(settings: SamplingSettings, prompt_ids: tuple[int, ...] = (), output_ids: tuple[int, ...] = ()) -> Processors:
    processors = Processors(settings, prompt_ids)
    for token_id in output_ids:
        processors.add(token_id)
    return processors


def processed(rows: list[Processors], end_bans: list[bool] | None = None) -> list[list[float]]:
    logits = mx.array([LOGITS] * len(rows))
    return np.array(process(logits, rows, end_bans or [False] * len(rows))).tolist()


def test_without_settings_nothing_changes():
    logits = mx.array([LOGITS, LOGITS])
    assert process(logits, [made(SamplingSettings(), (0, 1))] * 2, [False, True]) is logits


def test_a_bias_is_added():
    assert applied(SamplingSettings(logit_bias={1: 3.0, 3: -1.0})) == [2.0, 1.0, 1.0, -0.5]


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_a_repetition_penalty_of_zero_or_one_is_off(off: float):
    assert applied(SamplingSettings(repetition_penalty=off), (0, 1)) == LOGITS
    assert Processors(SamplingSettings(repetition_penalty=off), (0, 1)).window is None


def test_a_repetition_penalty_makes_seen_tokens_less_likely_on_either_side_of_zero():
    assert applied(SamplingSettings(repetition_penalty=2.0), (0, 1)) == [1.0, -4.0, 1.0, 0.5]


def test_presence_counts_once_and_frequency_each_time():
    assert applied(SamplingSettings(presence_penalty=1.0), (2, 2, 2)) == [2.0, -2.0, 0.0, 0.5]
    assert applied(SamplingSettings(frequency_penalty=1.0), (2, 2, 2)) == [2.0, -2.0, -2.0, 0.5]


def test_bias_comes_before_repetition_and_repetition_before_the_others():
    settings = SamplingSettings(
        logit_bias={0: 2.0}, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    assert applied(settings, (0,), (0,)) == [(2.0 + 2.0) / 2.0 - 0.5 - 0.25 * 2, -2.0, 1.0, 0.5]


def test_the_window_covers_prompt_and_output_and_forgets():
    settings = SamplingSettings(presence_penalty=1.0, penalty_window=2)
    assert applied(settings, (0, 1)) == [1.0, -3.0, 1.0, 0.5]
    assert applied(settings, (0, 1), (2,)) == [2.0, -3.0, 0.0, 0.5]


def test_a_window_of_zero_is_the_whole_sequence():
    settings = SamplingSettings(presence_penalty=1.0, penalty_window=0)
    assert applied(settings, (0,) * 50, (1, *(2,) * 50)) == [1.0, -3.0, 0.0, 0.5]


def test_end_ids_are_banned_on_request_whatever_their_bias():
    settings = SamplingSettings(logit_bias={0: 100.0, 1: 1.0}, repetition_penalty=2.0)
    row = Processors(settings, (0, 3), frozenset({0, 3}))
    assert processed([row, row], [True, False]) == [[-math.inf, -1.0, 1.0, -math.inf], [51.0, -1.0, 1.0, 0.25]]


def test_each_row_has_its_own():
    rows = [
        made(SamplingSettings(), (0, 1, 2)),
        made(SamplingSettings(presence_penalty=1.0), (0,), (3,)),
        made(SamplingSettings(logit_bias={0: 1.0}, frequency_penalty=0.5), (0, 0)),
        made(SamplingSettings(repetition_penalty=2.0), (1,)),
    ]
    assert processed(rows) == [
        LOGITS,
        [1.0, -2.0, 1.0, -0.5],
        [2.0, -2.0, 1.0, 0.5],
        [2.0, -4.0, 1.0, 0.5],
    ]


def test_an_id_outside_the_vocabulary_changes_no_other_row():
    rows = [made(SamplingSettings(logit_bias={4: 9.0, 5: 9.0}, presence_penalty=1.0), (4, 1)), made(SamplingSettings())]
    assert processed(rows) == [[2.0, -3.0, 1.0, 0.5], LOGITS]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_halves_stay_halves(dtype: mx.Dtype):
    settings = SamplingSettings(logit_bias={0: 1.0}, repetition_penalty=1.1, presence_penalty=0.3)
    found = process(mx.array([LOGITS]).astype(dtype), [made(settings, (1,))], [False])
    expected = mx.array([-2.0]).astype(dtype) * 1.1 - 0.3
    assert found.dtype == dtype
    assert mx.array_equal(found, mx.concatenate([mx.array([3.0]), expected, mx.array([1.0, 0.5])])[None].astype(dtype))


@given(st.lists(st.integers(0, 200), max_size=150), st.integers(0, 30))
def test_a_window_holds_what_a_list_of_the_last_tokens_holds(token_ids: list[int], num_tokens: int):
    window = TokenWindow(num_tokens, token_ids[:10])
    for token_id in token_ids[10:]:
        window.add(token_id)
    recent = token_ids[-num_tokens:] if num_tokens else token_ids
    found = dict(zip(window.ids.tolist(), window.counts.tolist(), strict=True))
    assert found == {token_id: recent.count(token_id) for token_id in recent}
