"""Tests of `models.experts.account`."""

import pytest

from models.experts.account import ExpertAccount


@pytest.mark.parametrize(("hits", "misses", "ratio"), [(0, 0, 1.0), (3, 1, 0.75), (0, 5, 0.0)])
def test_the_hit_ratio_is_of_experts_that_were_routed_to(hits: int, misses: int, ratio: float) -> None:
    assert ExpertAccount(hits_total=hits, misses_total=misses).hit_ratio == ratio


def test_stalls_are_told_in_microseconds() -> None:
    assert ExpertAccount(stall_ns_total=2_500_999).stall_us_total == 2500
