"""Linear layers, embeddings, norms, activations and attention against plain formulas."""

import mlx.core as mx
import numpy as np
import pytest

from models.layers.activations import swiglu
from models.layers.attention import attention, join_heads, split_heads
from models.layers.embedding import Embedding, QuantizedEmbedding
from models.layers.linear import Linear, QuantizedLinear
from models.layers.norms import RMSNorm
from models.layers.quantized import QuantizedMatrix
from models.step import NumericPath

PATHS = list(NumericPath)


def normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


def packed(rows: int, columns: int, bits: int = 4) -> QuantizedMatrix:
    codes, scales, biases = mx.quantize(normal(rows, columns), group_size=32, bits=bits)
    return QuantizedMatrix(codes, scales, biases, 32, bits)


def distance(left: mx.array, right: mx.array) -> float:
    assert left.shape == right.shape
    return float(np.abs(np.array(left) - np.array(right)).max())


@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_a_product_and_a_sum(biased: bool) -> None:
    weight, bias, x = normal(6, 8), normal(6), normal(1, 3, 8)
    expected = np.array(x) @ np.array(weight).T + (np.array(bias) if biased else 0)
    assert distance(Linear(weight, bias if biased else None)(x, None), mx.array(expected)) < 1e-5


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3])
@pytest.mark.parametrize("expand_rows", [None, 1, 2])
def test_packed_linear_is_the_product_with_the_expanded_weight(
    bits: int, num_rows: int, expand_rows: int | None
) -> None:
    matrix, bias, x = packed(16, 64, bits), normal(16), normal(1, num_rows, 64)
    layer = QuantizedLinear(matrix, bias, expand_rows=expand_rows)
    assert distance(layer(x, None), Linear(matrix.expand(), bias)(x, None)) < 1e-4


def test_packed_embedding_expands_only_the_rows_it_reads() -> None:
    matrix = packed(10, 64)
    tokens = mx.array([[3, 0, 3]])
    assert mx.array_equal(QuantizedEmbedding(matrix)(tokens), Embedding(matrix.expand())(tokens))


def test_rms_norm_scales_each_position_to_one() -> None:
    x, weight = 5 * normal(1, 3, 8), normal(8)
    expected = np.array(x) / np.sqrt((np.array(x) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * np.array(weight)
    assert distance(RMSNorm(weight, 1e-5)(x), mx.array(expected)) < 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_swiglu_is_silu_of_the_gate_times_up(path: NumericPath) -> None:
    gate = mx.array([-1000.0, -90.0, -20.0, -1.0, 0.0, 1.0, 20.0, 90.0, 1000.0])
    up = mx.full(gate.shape, 1.5)
    wide = np.array(gate, dtype=np.float64)
    with np.errstate(over="ignore"):
        expected = 1.5 * wide / (1 + np.exp(-wide))
    ours = np.array(swiglu(path)(gate, up))
    assert np.isfinite(ours).all()
    assert np.abs(ours - expected).max() < 1e-4


def test_heads_split_and_join_again() -> None:
    x = normal(2, 3, 8)
    assert split_heads(x, 4).shape == (2, 4, 3, 2)
    assert mx.array_equal(join_heads(split_heads(x, 4)), x)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 9), (5, 5), (5, 9), (64, 64), (65, 130), (200, 200)])
def test_attention_looks_at_itself_and_what_came_before(
    path: NumericPath, kv_heads: int, num_queries: int, num_keys: int
) -> None:
    queries, keys, values = (
        normal(1, 6, num_queries, 8),
        normal(1, kv_heads, num_keys, 8),
        normal(1, kv_heads, num_keys, 8),
    )
    wide_keys, wide_values = (np.repeat(np.array(array), 6 // kv_heads, axis=1) for array in (keys, values))
    scores = np.array(queries) @ wide_keys.swapaxes(2, 3) * 0.3
    future = np.arange(num_keys)[None, :] > np.arange(num_keys - num_queries, num_keys)[:, None]
    weights = np.exp(np.where(future, -np.inf, scores))
    expected = weights / weights.sum(axis=-1, keepdims=True) @ wide_values
    assert distance(attention(path)(queries, keys, values, 0.3), mx.array(expected.astype(np.float32))) < 1e-5
