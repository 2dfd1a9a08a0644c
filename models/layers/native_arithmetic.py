"""Kernels of our own on the CPU.

What they give for a row depends on that row alone, whatever rows come with it and however many threads share the work.
A forward that is made of nothing else can be recorded (`models.recorded`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import mlx.core as mx

from models.layers.arithmetic import Activation, DenseLayer, ExpertsProduct, Product, Products, Sharing, Sum
from models.layers.attention import attend as attend_within
from models.layers.attention import join_heads
from models.layers.cache import Step
from models.layers.expert_stacks import ExpertStacks
from models.layers.gated_delta import DeltaRule
from models.layers.low_rank import Addition, LowRank, LowRankShare, chained, disjoint_runs
from models.layers.native_experts import expert_products
from models.layers.quantized import QuantizedMatrix
from models.layers.recurrence import State, Walk
from models.layers.rope import Angles, RopeConfig, frequencies
from native import blend, dense, experts, kernels, low_rank, recurrent


class NativeArithmetic:
    """Everything in float32; weights, packed or dense, are read as they are stored."""

    name: Literal["native"] = "native"
    keeps_scales = True
    keeps_weights = True
    is_paged = True

    def product(self, matrix: QuantizedMatrix) -> Product:
        """Return what multiplies with the transposed matrix."""
        codes, scales, biases = matrix.parts
        form = matrix.group_size, matrix.bits
        return lambda x: kernels.quantized_linear(x, codes, scales, biases, *form)

    def product_sum(self, matrix: QuantizedMatrix) -> Sum:
        """Return what adds the product to another array, in the same operation."""
        codes, scales, biases = matrix.parts
        form = matrix.group_size, matrix.bits
        return lambda x, addend: kernels.quantized_linear(x, codes, scales, biases, *form, addend=addend)

    def products(self, matrices: Sequence[QuantizedMatrix]) -> Products:
        """Return what multiplies with several transposed matrices; those that are packed alike share one job."""
        places: dict[tuple[int, int], list[int]] = {}
        for place, matrix in enumerate(matrices):
            places.setdefault((matrix.group_size, matrix.bits), []).append(place)
        jobs = [([matrices[place].parts for place in alike], *form) for form, alike in places.items()]
        if len(jobs) == 1:
            return lambda x: kernels.quantized_linears(x, *jobs[0])
        order = [place for alike in places.values() for place in alike]

        def multiply(x: mx.array) -> list[mx.array]:
            found = [product for job in jobs for product in kernels.quantized_linears(x, *job)]
            by_place = dict(zip(order, found, strict=True))
            return [by_place[place] for place in range(len(found))]

        return multiply

    def gated_product(self, gate: QuantizedMatrix, up: QuantizedMatrix) -> Product:
        """Return what joins the products with two transposed matrices by `gate`, in one job if packed alike."""
        form = gate.group_size, gate.bits
        if form == (up.group_size, up.bits):
            gate_parts, up_parts = gate.parts, up.parts
            return lambda x: kernels.quantized_swiglu(x, gate_parts, up_parts, *form)
        both = self.products((gate, up))
        return lambda x: kernels.swiglu(*both(x))

    def take(self, matrix: QuantizedMatrix, indices: mx.array) -> mx.array:
        """Return the rows at `indices`, expanding only those."""
        return kernels.quantized_rows(*matrix.parts, indices, matrix.group_size, matrix.bits)

    def dense_product(self, weight: mx.array, bias: mx.array | None) -> Product:
        """Return what multiplies with the transposed dense weight, and adds the bias."""
        if bias is None:
            return lambda x: dense.linear(x, weight)
        return lambda x: kernels.add(dense.linear(x, weight), bias)

    def dense_product_sum(self, weight: mx.array, bias: mx.array | None) -> Sum:
        """Return what adds the product and bias to another array, in the same operation where there is no bias."""
        if bias is None:
            return lambda x, addend: dense.linear(x, weight, addend=addend)
        return lambda x, addend: kernels.add(addend, kernels.add(dense.linear(x, weight), bias))

    def dense_products(self, layers: Sequence[DenseLayer]) -> Products:
        """Return what does so for several dense weights, in one job."""
        weights, biases = [weight for weight, _ in layers], [bias for _, bias in layers]

        def multiply(x: mx.array) -> list[mx.array]:
            products = zip(dense.linears(x, weights), biases, strict=True)
            return [product if bias is None else kernels.add(product, bias) for product, bias in products]

        return multiply

    def dense_gated_product(self, gate: mx.array, up: mx.array) -> Product:
        """Return what joins the products with two transposed dense weights by `gate`, in one job."""
        return lambda x: dense.linear_swiglu(x, gate, up)

    def dense_take(self, weight: mx.array, indices: mx.array) -> mx.array:
        """Return the rows at `indices`, converting only those."""
        return dense.rows(weight, indices)

    def gated_delta(self, rule: DeltaRule) -> NativeGatedDelta:
        """Return the recurrence of a layer of gated linear attention."""
        return NativeGatedDelta(rule)

    def gated_norm(self, x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Return silu(gate) * rms_norm(x)."""
        return kernels.swiglu(gate, kernels.rms_norm(x, weight, eps))

    def low_rank(self, a: mx.array, b: mx.array) -> LowRank:
        """Return the first matrix transposed, as its kernel reads it, and the second as it is."""
        return LowRank(mx.contiguous(a.T), mx.contiguous(b))

    def low_rank_sum(self, shares: Sequence[LowRankShare]) -> Addition:
        """Return what adds the products, in one operation where no token has two."""
        return chained([_addition(run) for run in disjoint_runs(shares)])

    def experts(self, stacks: ExpertStacks, activation: Activation) -> ExpertsProduct:
        """Return what gives tokens to the experts that were chosen for them."""
        return expert_products(stacks, activation)

    def choose_experts(
        self, logits: mx.array, num_chosen: int, sharing: Sharing, scale: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Choose for each token the experts of its largest logits, the largest first; of equals the lower number."""
        return experts.choose_experts(logits, num_chosen, is_of_all=sharing is Sharing.OF_ALL, scale=scale)

    def mix(self, answers: mx.array, shares: mx.array) -> mx.array:
        """Return the sum of answers by their shares."""
        return experts.mix(answers, shares)

    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return sigmoid(gate) * x."""
        return experts.sigmoid_gate(x, gate)

    def gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return silu(gate) * up."""
        return kernels.swiglu(gate, up)

    def gelu_gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return gelu(gate) * up."""
        return blend.geglu(gate, up)

    def multiply(self, x: mx.array, factor: mx.array) -> mx.array:
        """Return the product."""
        return blend.multiply(x, factor)

    def columns(self, x: mx.array, begin: int, end: int) -> mx.array:
        """Return the columns of `x` from `begin` to before `end`."""
        return blend.columns(x, begin, end - begin)

    def soft_bound(self, x: mx.array, bound: float) -> mx.array:
        """Return bound * tanh(x / bound)."""
        return blend.soft_bound(x, bound)

    def add(self, x: mx.array, addend: mx.array) -> mx.array:
        """Return the sum."""
        return kernels.add(x, addend)

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Scale each run of the last axis to root mean square 1, then by `weight`."""
        return kernels.rms_norm(x, weight, eps)

    def rotary(self, head_dim: int, config: RopeConfig) -> NativeRotary:
        """Return the rotary positions of heads of width `head_dim`."""
        return NativeRotary(head_dim, config)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, window: int | None = None
    ) -> mx.array:
        """Return [1, T, H * D]; a window that hides something is left to MLX, whose bits depend on T."""
        if window is not None and keys.shape[2] > window:
            return join_heads(attend_within(queries, keys, values, scale, window))
        mixed = kernels.attention(queries, keys, values, scale, is_causal=True)
        return mx.flatten(mixed, 2)  # [1, T, H, D] -> [1, T, H * D]


class NativeGatedDelta:
    """The recurrence by one kernel for all rows of a step; see `models.layers.gated_delta.MlxGatedDelta`.

    Args:
        rule: the layer's.
    """

    def __init__(self, rule: DeltaRule) -> None:
        self._rule = rule

    @cached_property
    def _convolution(self) -> mx.array:
        """[C, K, 1] as [K, C]."""
        return mx.contiguous(mx.swapaxes(self._rule.convolution[..., 0], 0, 1))

    @cached_property
    def _decay(self) -> tuple[mx.array, mx.array]:
        return mx.exp(self._rule.decay_logs), self._rule.decay_biases

    def __call__(self, inputs: Sequence[mx.array], walks: Sequence[Walk]) -> tuple[mx.array, list[list[State]]]:
        """Go through the tokens of all rows."""
        mixed, decays, corrections = inputs
        states = [walk.state or self._rule.empty_state(mx.float32) for walk in walks]
        y, reached = recurrent.gated_delta(
            (mixed, decays, corrections),
            self._convolution,
            self._decay,
            [(state[0], state[1]) for state in states],
            [walk.pieces for walk in walks],
        )
        return y, [[*row] for row in reached]


def _addition(shares: Sequence[LowRankShare]) -> Addition:
    matrices = [(share.matrices.down, share.matrices.up) for share in shares]
    scales = [share.scale for share in shares]
    rows = [None if share.tokens is None else list(share.tokens) for share in shares]
    return lambda x, y: low_rank.add(x, y, matrices, scales, rows)


class NativeRotary:
    """Rotary positions whose angles are computed once a step, each as MLX computes it."""

    def __init__(self, head_dim: int, config: RopeConfig) -> None:
        self._turns = (
            mx.reciprocal(frequencies(head_dim, config))
            if config.has_frequencies
            else _angles_of_a_token(config.width(head_dim), config.theta)
        )
        self._position_scale = config.position_scale
        self._magnitude = None if config.magnitude == 1 else mx.array([config.magnitude], dtype=mx.float32)
        self._is_interleaved = config.traditional

    def at(self, step: Step) -> Angles:
        """Return the angles of a step's tokens."""
        cosines, sines = kernels.angles(step.positions, self._turns, self._position_scale)  # [N] -> [N, D / 2]
        if self._magnitude is not None:
            # What is turned grows with them.
            cosines, sines = (blend.multiply(x, self._magnitude) for x in (cosines, sines))
        return Angles(cosines, sines, self._is_interleaved)


def _angles_of_a_token(head_dim: int, theta: float) -> mx.array:
    """Return float32 [D / 2] radians: a power of `theta` each, rounded on the way as MLX's operation does."""
    half = head_dim // 2
    return mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * mx.array(math.log(theta) / half, dtype=mx.float32))
