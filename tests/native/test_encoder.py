"""Attention of heads that lie side by side: against float64, and against itself in other company."""

import mlx.core as mx
import numpy as np
import pytest

from native import elements, kernels
from native.errors import OperandRejected
from tests.native.arrays import EVERY_SET, equal_bits, normal
from tests.native.test_fused import exact_attention, near

pytestmark = [
    pytest.mark.skipif(not EVERY_SET, reason="built without the native extension"),
    pytest.mark.usefixtures("instructions"),
]


def apart(x: mx.array, num_heads: int) -> mx.array:
    """Return [B, H, T, D] of [B, T, E]."""
    return mx.swapaxes(mx.unflatten(x, -1, (num_heads, -1)), 1, 2)


def exact(queries: mx.array, keys: mx.array, values: mx.array, num_heads: int, scale: float) -> np.ndarray:
    heads = apart(queries, num_heads), apart(keys, num_heads), apart(values, num_heads)
    return exact_attention(*heads, scale, is_causal=False).reshape(queries.shape)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (3, 15), (7, 63), (24, 64), (26, 65), (50, 300)])
@pytest.mark.parametrize("width", [20, 64])
def test_every_query_sees_every_key(width: int, num_queries: int, num_keys: int) -> None:
    queries = normal(2, num_queries, 3 * width)
    keys, values = normal(2, num_keys, 3 * width, seed=2), normal(2, num_keys, 3 * width, seed=3)

    y = elements.full_attention(queries, keys, values, 3, 0.125)

    assert y.shape == queries.shape
    assert near(y, exact(queries, keys, values, 3, 0.125))


def test_a_query_has_the_bits_that_it_has_alone() -> None:
    queries, keys, values = normal(2, 60, 128), normal(2, 150, 128, seed=2), normal(2, 150, 128, seed=3)
    kernels.set_threads(1)
    whole = elements.full_attention(queries, keys, values, 2, 0.125)
    mx.eval(whole)

    for begin, end in [(0, 1), (0, 25), (5, 11), (59, 60)]:
        kernels.set_threads(1 + end % 4)
        alone = elements.full_attention(queries[1:, begin:end], keys[1:], values[1:], 2, 0.125)
        assert equal_bits(alone, whole[1:, begin:end])


def test_rows_may_lie_apart() -> None:
    wide, keys, values = normal(3, 9, 200), normal(9, 2, 96, seed=2), normal(2, 9, 192, seed=3)
    operands = wide[:2, :, 50:146], keys.swapaxes(0, 1), values[:, :, 96:]
    copies = mx.contiguous(operands[0]), mx.contiguous(operands[1]), mx.contiguous(operands[2])

    y = elements.full_attention(*operands, 4, 0.2)

    assert equal_bits(y, elements.full_attention(*copies, 4, 0.2))


def test_large_scores_do_not_overflow() -> None:
    queries, keys, values = normal(1, 4, 64) * 50, normal(1, 70, 64, seed=2) * 50, normal(1, 70, 64, seed=3)

    y = elements.full_attention(queries, keys, values, 1, 1.0)

    assert np.allclose(np.array(y), exact(queries, keys, values, 1, 1.0), atol=0.02)
    assert bool(mx.all(mx.isfinite(y)))


def test_no_queries_give_none() -> None:
    assert elements.full_attention(normal(1, 0, 8), normal(1, 3, 8), normal(1, 3, 8), 2, 1.0).shape == (1, 0, 8)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 300), (5, 5), (33, 100)])
def test_heads_side_by_side_have_the_bits_of_heads_apart(num_queries: int, num_keys: int, is_causal: bool) -> None:
    kept = normal(2, 2, 320, 96, seed=2)
    queries, keys, values = normal(2, num_queries, 96), kept[0, :, :num_keys], kept[1, :, :num_keys]
    heads = apart(queries, 4), apart(keys, 4), apart(values, 4)

    y = elements.head_attention(queries, keys, values, 4, 0.2, is_causal=is_causal)

    assert equal_bits(y, kernels.attention(*heads, 0.2, is_causal=is_causal).reshape(queries.shape))


def test_a_query_sees_a_key_at_least() -> None:
    with pytest.raises(OperandRejected):
        elements.head_attention(normal(1, 3, 8), normal(1, 2, 8), normal(1, 2, 8), 2, 1.0, is_causal=True)
    with pytest.raises(OperandRejected):
        elements.head_attention(normal(1, 3, 8), normal(1, 0, 8), normal(1, 0, 8), 2, 1.0, is_causal=False)


@pytest.mark.parametrize(
    ("queries", "keys", "values", "num_heads"),
    [
        ((1, 2, 8), (1, 3, 8), (1, 3, 8), 3),
        ((1, 2, 8), (1, 3, 8), (1, 3, 8), 0),
        ((1, 2, 8), (2, 3, 8), (2, 3, 8), 2),
        ((1, 2, 8), (1, 3, 16), (1, 3, 16), 2),
        ((1, 2, 8), (1, 3, 8), (1, 4, 8), 2),
        ((1, 2, 8), (1, 0, 8), (1, 0, 8), 2),
        ((2, 8), (1, 3, 8), (1, 3, 8), 2),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    queries: tuple[int, ...], keys: tuple[int, ...], values: tuple[int, ...], num_heads: int
) -> None:
    with pytest.raises(OperandRejected):
        elements.full_attention(normal(*queries), normal(*keys), normal(*values), num_heads, 1.0)


def test_elements_of_a_row_must_lie_side_by_side() -> None:
    keys = normal(1, 8, 3).swapaxes(1, 2)
    with pytest.raises(OperandRejected):
        mx.eval(elements.full_attention(normal(1, 2, 8), keys, normal(1, 3, 8), 2, 1.0))
