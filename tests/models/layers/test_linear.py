"""Linear layers, embeddings, norms, gates and attention against plain formulas, by every arithmetic."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from models.layers.arithmetic import Arithmetic
from models.layers.attention import join_heads, split_heads
from models.layers.embedding import Embedding, QuantizedEmbedding
from models.layers.linear import GatedLinear, Linear, LinearGroup, LinearLayer, QuantizedLinear
from models.layers.mlx_arithmetic import MlxArithmetic, MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.layers.norms import RMSNorm
from models.layers.quantized import QuantizedMatrix
from native import kernels

Kind = Callable[[], Arithmetic]
Form = tuple[int, int] | None  # bits and group size; None: dense
ARITHMETICS: list[Kind] = [MlxArithmetic, MlxCpuArithmetic, *([NativeArithmetic] if kernels.is_available() else [])]
on_every_arithmetic = pytest.mark.parametrize("kind", ARITHMETICS)


def normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


def packed(rows: int, columns: int, bits: int = 4, group_size: int = 32) -> QuantizedMatrix:
    codes, scales, biases = mx.quantize(normal(rows, columns), group_size=group_size, bits=bits)
    return QuantizedMatrix(codes, scales, biases, group_size, bits)


def expanded(matrix: QuantizedMatrix) -> mx.array:
    return mx.dequantize(*matrix.parts, group_size=matrix.group_size, bits=matrix.bits)


def layer_of(form: Form, bias: mx.array | None, arithmetic: Arithmetic) -> LinearLayer:
    if form is None:
        return Linear(normal(16, 64), bias, arithmetic)
    return QuantizedLinear(packed(16, 64, *form), bias, arithmetic)


def distance(left: mx.array, right: mx.array) -> float:
    assert left.shape == right.shape
    return float(np.abs(np.array(left) - np.array(right)).max())


@on_every_arithmetic
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_linear_is_a_product_and_a_sum(kind: Kind, num_rows: int, biased: bool) -> None:
    weight, bias, x = normal(6, 8), normal(6), normal(1, num_rows, 8)
    expected = np.array(x) @ np.array(weight).T + (np.array(bias) if biased else 0)
    assert distance(Linear(weight, bias if biased else None, kind())(x, None), mx.array(expected)) < 1e-5


@pytest.mark.parametrize("kind", [MlxArithmetic, MlxCpuArithmetic])
def test_a_dense_product_of_mlx_has_the_bits_of_its_operations(kind: Kind) -> None:
    weight, bias, x = normal(40, 64), normal(40), normal(1, 5, 64)
    assert mx.array_equal(Linear(weight, None, kind())(x, None), x @ weight.T)
    assert mx.array_equal(Linear(weight, bias, kind())(x, None), mx.addmm(bias, x, weight.T))


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_native_kernels_read_half_floats_as_they_are(dtype: mx.Dtype) -> None:
    weight, x, native = normal(24, 40).astype(dtype), normal(1, 3, 40), NativeArithmetic()
    wide = weight.astype(mx.float32)
    assert mx.array_equal(Linear(weight, None, native)(x, None), Linear(wide, None, native)(x, None))
    tokens = mx.array([[3, 0, 3]])
    assert mx.array_equal(Embedding(weight, native)(tokens), wide[tokens])


@on_every_arithmetic
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_packed_linear_is_the_product_with_the_expanded_weight(kind: Kind, bits: int, num_rows: int) -> None:
    matrix, bias, x = packed(16, 64, bits), normal(16), normal(1, num_rows, 64)
    layer = QuantizedLinear(matrix, bias, kind())
    assert distance(layer(x, None), Linear(expanded(matrix), bias, MlxArithmetic())(x, None)) < 1e-4


@on_every_arithmetic
@pytest.mark.parametrize(
    "forms", [((4, 32), (4, 32), (4, 32)), ((4, 32), (8, 64), (4, 32)), ((4, 32), None, (6, 32)), (None, None, None)]
)
def test_layers_together_give_what_each_gives_alone(kind: Kind, forms: tuple[tuple[int, int] | None, ...]) -> None:
    arithmetic, x = kind(), normal(1, 2, 64)
    layers: list[LinearLayer] = []
    for rows, form in zip((16, 24, 8), forms, strict=True):
        if form is None:
            layers.append(Linear(normal(rows, 64), normal(rows), arithmetic))
        else:
            layers.append(QuantizedLinear(packed(rows, 64, *form), normal(rows), arithmetic))
    together = LinearGroup(layers, arithmetic)(x, None)
    assert all(mx.array_equal(ours, layer(x, None)) for ours, layer in zip(together, layers, strict=True))


@on_every_arithmetic
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gate_form", [(4, 32), None])
@pytest.mark.parametrize("up_form", [(4, 32), (8, 64), None])
def test_gated_layers_join_what_both_give(kind: Kind, biased: bool, gate_form: Form, up_form: Form) -> None:
    arithmetic, x = kind(), normal(1, 3, 64)
    bias = normal(16) if biased else None
    gate, up = (layer_of(form, bias, arithmetic) for form in (gate_form, up_form))
    expected = arithmetic.gate(gate(x, None), up(x, None))
    assert mx.array_equal(GatedLinear(gate, up, arithmetic)(x, None), expected)


@on_every_arithmetic
def test_packed_embedding_expands_only_the_rows_it_reads(kind: Kind) -> None:
    matrix = packed(10, 64)
    tokens = mx.array([[3, 0, 3]])
    plain = Embedding(expanded(matrix), kind())
    assert distance(QuantizedEmbedding(matrix, kind())(tokens), plain(tokens)) < 1e-6


@on_every_arithmetic
def test_rms_norm_scales_each_position_to_one(kind: Kind) -> None:
    x, weight = 5 * normal(1, 3, 8), normal(8)
    expected = np.array(x) / np.sqrt((np.array(x) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * np.array(weight)
    assert distance(RMSNorm(weight, 1e-5, kind())(x), mx.array(expected)) < 1e-5


@on_every_arithmetic
def test_the_gate_is_silu_times_up(kind: Kind) -> None:
    gate = mx.array([-1000.0, -90.0, -20.0, -1.0, 0.0, 1.0, 20.0, 90.0, 1000.0])
    up = mx.full(gate.shape, 1.5)
    wide = np.array(gate, dtype=np.float64)
    with np.errstate(over="ignore"):
        expected = 1.5 * wide / (1 + np.exp(-wide))
    ours = np.array(kind().gate(gate, up))
    assert np.isfinite(ours).all()
    assert np.abs(ours - expected).max() < 1e-4


def test_heads_split_and_join_again() -> None:
    x = normal(2, 3, 8)
    assert split_heads(x, 4).shape == (2, 4, 3, 2)
    assert mx.array_equal(join_heads(split_heads(x, 4)), x)


@on_every_arithmetic
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 9), (5, 5), (5, 9), (64, 64), (65, 130), (200, 200)])
def test_attention_looks_at_itself_and_what_came_before(
    kind: Kind, kv_heads: int, num_queries: int, num_keys: int
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
    joined = expected.swapaxes(1, 2).reshape(1, num_queries, -1).astype(np.float32)
    assert distance(kind().attend(queries, keys, values, 0.3), mx.array(joined)) < 1e-5
