"""Bytes of a part."""

import mlx.core as mx
import numpy as np

from models.layers.part_bytes import arrays_of, bytes_of


def test_bytes_give_the_arrays_back() -> None:
    contents = ((mx.ones((2, 3)), mx.array([1, 2], dtype=mx.uint8)), None, (mx.zeros((0, 4), dtype=mx.bfloat16),))
    found = arrays_of(bytes_of(contents), 3)
    for content, other in zip(contents, found, strict=True):
        for array, again in zip(content or (), other or (), strict=True):
            assert array.dtype == again.dtype
            assert np.array_equal(np.array(array.astype(mx.float32)), np.array(again.astype(mx.float32)))
    assert found[1] is None
