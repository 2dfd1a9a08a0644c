"""Sizes as options take them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.expert_options import expert_options
from gateway.cli.sizes import size_option
from gateway.experts import MAX_BUDGET_BYTES, MIN_BUDGET_BYTES


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(999, "999"), (65_536, "65.6k"), (70_647_808, "70.7M"), (999_999, "1M"), (8_000_000_000, "8G"), (10**15, "1000T")],
)
def test_a_size_is_rounded_up_to_three_digits(num_bytes: int, text: str) -> None:
    assert size_option(num_bytes) == text


@given(st.integers(MIN_BUDGET_BYTES, MAX_BUDGET_BYTES * 99 // 100))
def test_what_is_told_is_taken_and_enough(num_bytes: int) -> None:
    taken = expert_options("slab", size_option(num_bytes)).expert_budget_bytes
    assert num_bytes <= taken <= num_bytes * 1.01
