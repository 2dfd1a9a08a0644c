"""What a model's layers compute with: one choice, made when the model is loaded, that all of them are built with.

    Arithmetic
    ├── MlxArithmetic          MLX's own operations: the reference path anywhere, the fast path on a GPU
    │   └── MlxCpuArithmetic   the same in the forms that are quick on the CPU: the fast path without native kernels
    └── NativeArithmetic       kernels of our own: the fast path on the CPU

Packed weights are a `QuantizedMatrix`; dense ones are a plain array [outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Literal, Protocol

import mlx.core as mx

from models.layers.cache import Rotation, Step
from models.layers.expert_stacks import ExpertStacks
from models.layers.gated_delta import DeltaRule
from models.layers.low_rank import Addition, LowRank, LowRankShare
from models.layers.quantized import QuantizedMatrix
from models.layers.recurrence import Recurrence
from models.layers.rope import RopeConfig

# [..., columns] to [..., rows of the matrix].
Product = Callable[[mx.array], mx.array]
# The same, added to an array of the product's shape, which comes second.
Sum = Callable[[mx.array, mx.array], mx.array]
# The product with each of several matrices.
Products = Callable[[mx.array], list[mx.array]]
# A dense weight [outputs, inputs], and the bias [outputs] that its layer adds.
DenseLayer = tuple[mx.array, mx.array | None]
# Tokens [1, N, E] and the numbers of experts, integers [1, N, k], to the answer of each of them [1, N, k, E].
ExpertsProduct = Callable[[mx.array, mx.array], mx.array]
# `gelu` is the one that is made of a tanh.
Activation = Literal["silu", "gelu"]


class Sharing(Enum):
    """What share of a token's answer each chosen expert has."""

    OF_ALL = "its probability among all experts"
    NORMALIZED = "that, divided by the sum over the chosen ones"
    OF_CHOSEN = "its probability among the chosen ones"


class Rotary(Protocol):
    """Rotary positions of one model."""

    def at(self, step: Step) -> Rotation:
        """Return what applies the positions of a step: made once for all its layers."""
        ...


class Arithmetic(Protocol):
    """The operations between the arrays of a model; none of them waits for the device."""

    @property
    def name(self) -> Literal["mlx", "native"]:
        """Whose operations they are."""
        ...

    @property
    def keeps_scales(self) -> bool:
        """Whether scales and biases of packed weights stay as stored, instead of in the compute dtype."""
        ...

    @property
    def keeps_weights(self) -> bool:
        """Whether dense weights of linear layers and embeddings stay as stored, instead of in the compute dtype."""
        ...

    def product(self, matrix: QuantizedMatrix) -> Product:
        """Return what multiplies with the transposed matrix."""
        ...

    def product_sum(self, matrix: QuantizedMatrix) -> Sum:
        """Return what adds the product to another array: the bits of a `product` and a sum."""
        ...

    def products(self, matrices: Sequence[QuantizedMatrix]) -> Products:
        """Return what multiplies with several transposed matrices: the bits of a `product` of each."""
        ...

    def gated_product(self, gate: QuantizedMatrix, up: QuantizedMatrix) -> Product:
        """Return what joins the products with two transposed matrices by `gate`."""
        ...

    def take(self, matrix: QuantizedMatrix, indices: mx.array) -> mx.array:
        """Return the rows at `indices` (integers of any shape) in the compute dtype, [..., columns]."""
        ...

    def dense_product(self, weight: mx.array, bias: mx.array | None) -> Product:
        """Return what multiplies with the transposed dense weight, and adds the bias."""
        ...

    def dense_product_sum(self, weight: mx.array, bias: mx.array | None) -> Sum:
        """Return what adds the product and bias to another array: the bits of a `dense_product` and a sum."""
        ...

    def dense_products(self, layers: Sequence[DenseLayer]) -> Products:
        """Return what does so for several dense weights: the bits of a `dense_product` of each."""
        ...

    def dense_gated_product(self, gate: mx.array, up: mx.array) -> Product:
        """Return what joins the products with two transposed dense weights by `gate`."""
        ...

    def dense_take(self, weight: mx.array, indices: mx.array) -> mx.array:
        """Return the rows of a dense matrix at `indices` (integers of any shape) in the compute dtype."""
        ...

    def gated_delta(self, rule: DeltaRule) -> Recurrence:
        """Return the recurrence of a layer of gated linear attention."""
        ...

    def gated_norm(self, x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Return silu(gate) * rms_norm(x) for `x` [..., runs * W] and a gate of its shape, by `weight` [W]."""
        ...

    def low_rank(self, a: mx.array, b: mx.array) -> LowRank:
        """Return an adapter's matrices [inputs, rank] and [rank, outputs] as `low_rank_sum` takes them."""
        ...

    def low_rank_sum(self, shares: Sequence[LowRankShare]) -> Addition:
        """Return what adds scale * ((x a) b) to a layer's outputs for the tokens of each share, in their order."""
        ...

    def experts(self, stacks: ExpertStacks, activation: Activation) -> ExpertsProduct:
        """Return what gives tokens to the experts that were chosen for them.

        What an expert gives for a token depends on nothing else. The stacks may be slots that are filled anew between
        two evaluations: they are read when the product is evaluated.
        """
        ...

    def choose_experts(
        self, logits: mx.array, num_chosen: int, sharing: Sharing, scale: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Choose for each token the experts of its largest logits.

        Args:
            logits: [1, N, X].
            num_chosen: k.
            sharing: what share each has.
            scale: [X], multiplies the shares of each expert; None: nothing does.

        Returns:
            Numbers of experts, integers [1, N, k], and their shares [1, N, k], both in the same order. Which of equals
            is chosen is up to the arithmetic, and always the same one for equal logits.
        """
        ...

    def mix(self, answers: mx.array, shares: mx.array) -> mx.array:
        """Return the sum of answers [1, N, k, E] by their shares [1, N, k], in their order; [1, N, E]."""
        ...

    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return sigmoid(gate) * x for `x` [..., W] and a gate of its shape or [..., 1]."""
        ...

    def gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return silu(gate) * up. Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU)."""
        ...

    def gelu_gate(self, gate: mx.array, up: mx.array) -> mx.array:
        """Return gelu(gate) * up, the gelu made of a tanh. Source: Shazeer 2020, arXiv:2002.05202 (GEGLU)."""
        ...

    def multiply(self, x: mx.array, factor: mx.array) -> mx.array:
        """Return the product of `x` [..., W] and an array of its shape, [W] or [1]."""
        ...

    def columns(self, x: mx.array, begin: int, end: int) -> mx.array:
        """Return the columns of `x` [..., W] from `begin` to before `end`."""
        ...

    def soft_bound(self, x: mx.array, bound: float) -> mx.array:
        """Return bound * tanh(x / bound)."""
        ...

    def add(self, x: mx.array, addend: mx.array) -> mx.array:
        """Return the sum of `x` [..., W] and an array of its shape, or [W]."""
        ...

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        """Scale each run of W elements to root mean square 1, then by `weight` [W]. Source: Zhang and Sennrich 2019."""
        ...

    def rotary(self, head_dim: int, config: RopeConfig) -> Rotary:
        """Return the rotary positions of heads of width `head_dim`."""
        ...

    @property
    def is_paged(self) -> bool:
        """Whether plain keys and values lie in a `models.layers.paged_cache.PagedCache`, which attends by itself."""
        ...

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, window: int | None = None
    ) -> mx.array:
        """Let each of the last T positions of a sequence look at itself and at what came before it.

        Args:
            queries: [1, H, T, D].
            keys: [1, H_kv, L, D].
            values: [1, H_kv, L, D].
            scale: multiplies the scores.
            window: a position sees itself and so many positions less one before it; None: all of them.

        Returns:
            [1, T, H * D].
        """
        ...
