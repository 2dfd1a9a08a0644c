"""Bits stand for the tokens that they are said to stand for."""

import numpy as np
import pytest

from worker.masks import packed, stacked


@pytest.mark.parametrize("width", [1, 31, 32, 33, 100])
def test_a_bit_stands_for_its_token(width: int):
    allowed = np.arange(width) % 3 == 1
    words = packed(allowed)
    assert words.dtype == np.uint32
    assert [bool(words[token // 32] >> (token % 32) & 1) for token in range(width)] == allowed.tolist()


def test_rows_are_filled_up():
    short, long = packed(np.ones(10, dtype=bool)), packed(np.ones(100, dtype=bool))
    words = stacked([None, short, long], 40)
    assert words.shape == (3, 2)
    assert [int(word).bit_count() for word in words.flat] == [32, 32, 10, 0, 32, 32]
