"""MLX's own operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import mlx.core as mx

from models.layers.arithmetic import Activation, DenseLayer, ExpertsProduct, Product, Products, Sharing, Sum
from models.layers.attention import attend, attend_in_parts, join_heads
from models.layers.cache import Span, Step
from models.layers.expert_stacks import ExpertStacks
from models.layers.gated_delta import DeltaRule, MlxGatedDelta
from models.layers.low_rank import Addition, LowRank, LowRankShare
from models.layers.mlx_experts import expert_products
from models.layers.mlx_low_rank import low_rank_sum
from models.layers.quantized import QuantizedMatrix
from models.layers.rope import RopeConfig, frequencies

# Measured (1536 x 576, 4 bits): packed 0.57 ms for one row and 1.14 ms for two, expanded 0.81 ms and 0.85 ms.
_EXPAND_ROWS = 2


class MlxArithmetic:
    """Each operation as mlx-lm calls it, bit for bit.

    Args:
        in_chunks: whether linear attention takes many tokens at once, which mlx-lm takes one by one.
    """

    name: Literal["mlx"] = "mlx"
    keeps_scales = False
    keeps_weights = False
    is_paged = False

    def __init__(self, *, in_chunks: bool = False) -> None:
        self._in_chunks = in_chunks
        # One kernel each, as in mlx-lm: it rounds otherwise than separate operations.
        self._compiled_gate = mx.compile(_sigmoid_gate, shapeless=True)
        self._compiled_wide_gate = mx.compile(_wide_gate, shapeless=True)
        self._compiled_gelu_gate = mx.compile(_gelu_gate, shapeless=True)
        self._compiled_soft_bound = mx.compile(_soft_bound, shapeless=True)

    def product(self, matrix: QuantizedMatrix) -> Product:
        """Return what multiplies with the transposed matrix."""
        codes, scales, biases = matrix.parts
        return lambda x: mx.quantized_matmul(
            x, codes, scales, biases, transpose=True, group_size=matrix.group_size, bits=matrix.bits
        )

    def product_sum(self, matrix: QuantizedMatrix) -> Sum:
        """Return what adds the product to another array."""
        product = self.product(matrix)
        return lambda x, addend: addend + product(x)

    def products(self, matrices: Sequence[QuantizedMatrix]) -> Products:
        """Return what multiplies with several transposed matrices, one after the other."""
        each = [self.product(matrix) for matrix in matrices]
        return lambda x: [product(x) for product in each]

    def gated_product(self, gate: QuantizedMatrix, up: QuantizedMatrix) -> Product:
        """Return what joins the products with two transposed matrices by `gate`."""
        gate_product, up_product = self.product(gate), self.product(up)
        return lambda x: self.gate(gate_product(x), up_product(x))

    def take(self, matrix: QuantizedMatrix, indices: mx.array) -> mx.array:
        """Return the rows at `indices`, expanding only those."""
        codes, scales, biases = matrix.codes[indices], matrix.scales[indices], matrix.biases[indices]
        return mx.dequantize(codes, scales, biases, group_size=matrix.group_size, bits=matrix.bits)

    def dense_product(self, weight: mx.array, bias: mx.array | None) -> Product:
        """Return what multiplies with the transposed dense weight, and adds the bias.

        Sums run in an order that depends on the number of rows: a position's last bits depend on what is computed with
        it.
        """
        transposed = weight.T
        if bias is None:
            return lambda x: x @ transposed
        return lambda x: mx.addmm(bias, x, transposed)

    def dense_product_sum(self, weight: mx.array, bias: mx.array | None) -> Sum:
        """Return what adds the product and bias to another array."""
        product = self.dense_product(weight, bias)
        return lambda x, addend: addend + product(x)

    def dense_products(self, layers: Sequence[DenseLayer]) -> Products:
        """Return what does so for several dense weights, one after the other."""
        each = [self.dense_product(weight, bias) for weight, bias in layers]
        return lambda x: [product(x) for product in each]

    def dense_gated_product(self, gate: mx.array, up: mx.array) -> Product:
        """Return what joins the products with two transposed dense weights by `gate`."""
        gate_product, up_product = self.dense_product(gate, None), self.dense_product(up, None)
        return lambda x: self.gate(gate_product(x), up_product(x))

    def dense_take(self, weight: mx.array, indices: mx.array) -> mx.array:
        """Return the rows at `indices`."""
        return weight[indices]

    def gated_delta(self, rule: DeltaRule) -> MlxGatedDelta:
        """Return the recurrence of a layer of gated linear attention."""
        return MlxGatedDelta(rule, compiles=True, in_chunks=self._in_chunks)

    def gated_norm(self, x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Return silu(gate) * rms_norm(x)."""
        return self._compiled_wide_gate(gate, self.rms_norm(x, weight, eps))

    def low_rank(self, a: mx.array, b: mx.array) -> LowRank:
        """Return the matrices in memory of their own."""
        return LowRank(mx.contiguous(a), mx.contiguous(b))

    def low_rank_sum(self, shares: Sequence[LowRankShare]) -> Addition:
        """Return what adds the products of each share to its tokens."""
        return low_rank_sum(shares)

    def experts(self, stacks: ExpertStacks, activation: Activation) -> ExpertsProduct:
        """Return what gives tokens to the experts that were chosen for them."""
        return expert_products(stacks, self.gate if activation == "silu" else self.gelu_gate)

    def choose_experts(
        self, logits: mx.array, num_chosen: int, sharing: Sharing, scale: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Choose for each token the experts of its largest logits."""
        is_of_chosen = sharing is Sharing.OF_CHOSEN
        # What is compared is what mlx-lm compares: two logits may have one probability.
        ranked = logits if is_of_chosen else mx.softmax(logits, axis=-1, precise=True)
        indices = mx.argpartition(ranked, kth=-num_chosen, axis=-1)[..., -num_chosen:]
        shares = mx.take_along_axis(ranked, indices, axis=-1)
        if is_of_chosen:
            shares = mx.softmax(shares, axis=-1)
        elif sharing is Sharing.NORMALIZED:
            shares = shares / mx.sum(shares, axis=-1, keepdims=True)
        return indices, shares if scale is None else shares * scale[indices]

    def mix(self, answers: mx.array, shares: mx.array) -> mx.array:
        """Return the sum of answers by their shares."""
        return mx.sum(answers * shares[..., None], axis=-2)

    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return sigmoid(gate) * x."""
        return mx.sigmoid(gate) * x

    def gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return silu(gate) * up."""
        return self._compiled_gate(gate, up)

    def gelu_gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return gelu(gate) * up."""
        return self._compiled_gelu_gate(gate, up)

    def multiply(self, x: mx.array, factor: mx.array) -> mx.array:
        """Return the product."""
        return x * factor

    def columns(self, x: mx.array, begin: int, end: int) -> mx.array:
        """Return the columns of `x` from `begin` to before `end`."""
        return x[..., begin:end]

    def soft_bound(self, x: mx.array, bound: float) -> mx.array:
        """Return bound * tanh(x / bound)."""
        return self._compiled_soft_bound(bound, x)

    def add(self, x: mx.array, addend: mx.array) -> mx.array:
        """Return the sum."""
        return x + addend

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Scale each run of the last axis to root mean square 1, then by `weight`."""
        width = weight.shape[0]
        if x.shape[-1] == width:
            return mx.fast.rms_norm(x, weight, eps)
        runs = mx.unflatten(x, -1, (-1, width))  # [..., runs * width] -> [..., runs, width]
        return mx.flatten(mx.fast.rms_norm(runs, weight, eps), -2)

    def rotary(self, head_dim: int, config: RopeConfig) -> MlxRotary:
        """Return the rotary positions of heads of width `head_dim`."""
        return MlxRotary(head_dim, config)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, window: int | None = None
    ) -> mx.array:
        """Return [1, T, H * D]."""
        return join_heads(attend(queries, keys, values, scale, window))


class MlxCpuArithmetic(MlxArithmetic):
    """MLX's operations in the forms that are quick on the CPU, without `mx.compile`, which calls a C++ compiler there.

    MLX's product of packed weights takes as long for each row of `x` as for the first, so several rows expand the
    matrix for the call and leave the product to BLAS. What a row gives depends in its last bits on the others.
    """

    def product(self, matrix: QuantizedMatrix) -> Product:
        """Return what multiplies with the transposed matrix."""
        packed_product = super().product(matrix)

        def multiply(x: mx.array) -> mx.array:
            if x.size < _EXPAND_ROWS * x.shape[-1]:
                return packed_product(x)
            return x @ mx.dequantize(*matrix.parts, group_size=matrix.group_size, bits=matrix.bits).T

        return multiply

    def gated_delta(self, rule: DeltaRule) -> MlxGatedDelta:
        """Return the recurrence of a layer of gated linear attention."""
        return MlxGatedDelta(rule, compiles=False, in_chunks=True)

    def gated_norm(self, x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Return silu(gate) * rms_norm(x)."""
        return self.gate(gate, self.rms_norm(x, weight, eps))

    def gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return silu(gate) * up."""
        # MLX's sigmoid on the CPU costs half as much again as its exponential. Far below zero the divisor is infinite
        # and the quotient the zero that silu tends to.
        return gate * up / (1 + mx.exp(-gate))

    def gelu_gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return gelu(gate) * up."""
        return _gelu_gate(gate, up)

    def soft_bound(self, x: mx.array, bound: float) -> mx.array:
        """Return bound * tanh(x / bound)."""
        return _soft_bound(bound, x)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, window: int | None = None
    ) -> mx.array:
        """Return [1, T, H * D]."""
        if window is not None and keys.shape[2] > window:
            return super().attend(queries, keys, values, scale, window)
        return join_heads(attend_in_parts(queries, keys, values, scale))


class MlxRotary:
    """Rotary positions by MLX's operation."""

    def __init__(self, head_dim: int, config: RopeConfig) -> None:
        is_stretched = config.has_frequencies
        self._rope = partial(
            mx.fast.rope,
            dims=config.width(head_dim),
            traditional=config.traditional,
            base=None if is_stretched else config.theta,
            scale=config.position_scale,
            freqs=frequencies(head_dim, config) if is_stretched else None,
        )

        self._magnitude = config.magnitude
        self._width = config.width(head_dim)

    def at(self, step: Step) -> MlxRotation:
        """Return what rotates the tokens of a step."""
        return MlxRotation(self._turn, step)

    def _turn(self, x: mx.array, offset: int | mx.array) -> mx.array:
        if self._magnitude != 1:
            front, back = x[..., : self._width] * self._magnitude, x[..., self._width :]
            x = mx.concatenate([front, back], axis=-1)
        return self._rope(x, offset=offset)


class MlxRotation:
    """The rotary positions of one step."""

    def __init__(self, rope: Callable[..., mx.array], step: Step) -> None:
        self._rope = rope
        self._step = step

    def rotate(self, x: mx.array, span: Span) -> mx.array:
        """Turn one row's heads [1, H, T, D]."""
        return self._rope(x, offset=span.start)

    def rotate_each(self, x: mx.array) -> mx.array:
        """Turn heads [N, H, 1, D] of a step whose rows have one token each."""
        return self._rope(x, offset=self._step.positions)


def _sigmoid_gate(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


def _wide_gate(gate: mx.array, up: mx.array) -> mx.array:
    """Do the same in float32, whatever goes in and comes out."""
    return _sigmoid_gate(gate.astype(mx.float32), up.astype(mx.float32)).astype(gate.dtype)


def _gelu_gate(gate: mx.array, up: mx.array) -> mx.array:
    """Hendrycks and Gimpel 2016, arXiv:1606.08415: the approximation by a tanh."""
    return 0.5 * gate * (1 + mx.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def _soft_bound(bound: float, x: mx.array) -> mx.array:
    return mx.tanh(x / bound) * bound
