"""The dense decoder that Llama began and many others vary.

Attention, then a gated feed-forward part, each normalized before and added to what went in. What varies is a
`DenseConfig`; each architecture's file says what its own is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from models.checkpoint.dialects import FULL
from models.checkpoint.rope_parameters import RopeParameters
from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.cache import AttentionLayer, Rotation, Step
from models.layers.decoder import Decoder, Placed, head_of, ignore_other_models
from models.layers.linear import GatedLinear, LinearGroup, LinearLayer, SplitLinear
from models.layers.norms import RMSNorm
from models.layers.rope import RopeConfig

_DEFAULT_ROPE = RopeParameters(theta=10_000.0)

# What several layers over one input give: [1, N, E] to an array for each.
Projections = Callable[[mx.array, Step | None], Sequence[mx.array]]


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """The numbers that fix the graph.

    Attributes:
        text: sizes, windows, and whether the head is the embedding.
        rope: how positions turn into angles.
        qkv_bias: whether projections to queries, keys and values add a bias.
        output_bias: whether the projection behind attention does.
        mlp_bias: whether the three projections of the feed-forward part do.
        has_head_norms: whether each head of queries and of keys is normalized before positions are applied.
        is_fused: whether queries, keys and values are one matrix, and gate and up another.
    """

    text: TextConfig
    rope: RopeConfig = field(default_factory=lambda: RopeConfig.of(_DEFAULT_ROPE))
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_head_norms: bool = False
    is_fused: bool = False

    @property
    def query_width(self) -> int:
        """Width H * D of all query heads together."""
        return self.text.num_attention_heads * self.text.head_dim

    @property
    def kv_width(self) -> int:
        """Width H_kv * D of all heads of keys together."""
        return self.text.num_key_value_heads * self.text.head_dim


def full_rope(text: TextConfig, *, share: float | None = None) -> RopeConfig:
    """Return the rotary positions of full attention.

    Args:
        text: what the config says.
        share: of a head that is turned, where it is not stated with them.
    """
    return RopeConfig.of(text.rope.get(FULL, _DEFAULT_ROPE), traditional=text.rope_traditional, share=share)


class Attention:
    """Self-attention with cached keys and values."""

    def __init__(self, config: DenseConfig, weights: Weights, prefix: str, layer_index: int) -> None:
        text = config.text
        self._layer_index = layer_index
        self._qkv = _qkv(config, weights, prefix)
        self.o_proj = weights.linear(f"{prefix}.o_proj", text.hidden_size, config.query_width, bias=config.output_bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.has_head_norms:
            self.q_norm = weights.norm(f"{prefix}.q_norm", text.head_dim, text.rms_norm_eps)
            self.k_norm = weights.norm(f"{prefix}.k_norm", text.head_dim, text.rms_norm_eps)

    def add_to(self, total: mx.array, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Add to `total` [1, N, E] what each position of `x` [1, N, E] finds in its sequence up to itself."""
        queries, keys, values = self._qkv(x, step)  # [1, N, E] -> [1, N, H * D], twice [1, N, H_kv * D]
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return self.o_proj.add_to(total, step.attend(self._layer_index, queries, keys, values, rotation), step)


class FeedForward(Protocol):
    """What a layer does to each position by itself."""

    def add_to(self, total: mx.array, x: mx.array, step: Step, /) -> mx.array:
        """Add to `total` [1, N, E] what the part gives for each position of `x` [1, N, E]."""
        ...


class MLP:
    """The gated feed-forward part."""

    def __init__(self, config: DenseConfig, weights: Weights, layer_index: int) -> None:
        prefix = f"model.layers.{layer_index}.mlp"
        width, inner, bias = config.text.hidden_size, config.text.intermediate_size, config.mlp_bias
        self._gated: Callable[[mx.array, Step | None], mx.array]
        if config.is_fused:
            both = weights.linear(f"{prefix}.gate_up_proj", 2 * inner, width, bias=bias)
            self._gated = FusedGate(both, inner, weights)
        else:
            self.gate_proj = weights.linear(f"{prefix}.gate_proj", inner, width, bias=bias)
            self.up_proj = weights.linear(f"{prefix}.up_proj", inner, width, bias=bias)
            self._gated = GatedLinear(self.gate_proj, self.up_proj, weights.arithmetic)
        self.down_proj = weights.linear(f"{prefix}.down_proj", width, inner, bias=bias)

    def add_to(self, total: mx.array, x: mx.array, step: Step) -> mx.array:
        """Add to `total` [1, N, E] what the part gives for each position of `x` [1, N, E]."""
        return self.down_proj.add_to(total, self._gated(x, step), step)


class FusedGate:
    """silu(gate(x)) * up(x) where gate and up are one matrix."""

    def __init__(self, both: LinearLayer, inner: int, weights: Weights) -> None:
        self.gate_up_proj = both
        self._split = SplitLinear(both, (inner, inner), weights.arithmetic)
        self._gate = weights.arithmetic.gate

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layers to every position of `x`."""
        gate, up = self._split(x, step)
        return self._gate(gate, up)


# The feed-forward part of a layer, by its number.
MakeFeedForward = Callable[[DenseConfig, Weights, int], FeedForward]


class Block:
    """One layer: attention, then feed-forward, each added to what went in."""

    def __init__(self, config: DenseConfig, weights: Weights, layer_index: int, make: MakeFeedForward) -> None:
        prefix = f"model.layers.{layer_index}"
        self.self_attn = Attention(config, weights, f"{prefix}.self_attn", layer_index)
        self.mlp = make(config, weights, layer_index)
        norms = (config.text.hidden_size, config.text.rms_norm_eps)
        self.input_layernorm = weights.norm(f"{prefix}.input_layernorm", *norms)
        self.post_attention_layernorm = weights.norm(f"{prefix}.post_attention_layernorm", *norms)

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Apply the layer to `x` [1, N, E]."""
        x = self.self_attn.add_to(x, self.input_layernorm(x), step, rotation)
        return self.mlp.add_to(x, self.post_attention_layernorm(x), step)


def dense_decoder(config: DenseConfig, weights: Weights, make_feed_forward: MakeFeedForward = MLP) -> Decoder:
    """Build the model, taking every tensor from `weights` and computing with their arithmetic.

    Args:
        config: how it varies.
        weights: its tensors.
        make_feed_forward: makes the feed-forward part of each layer.

    Raises:
        CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
    """
    text = config.text
    ignore_other_models(weights)
    rotary = weights.arithmetic.rotary(text.head_dim, config.rope)
    is_rotated = text.rotated_layers or (True,) * text.num_hidden_layers
    heads = (text.num_attention_heads, text.num_key_value_heads, text.head_dim, text.head_dim**-0.5)
    embed_tokens = weights.embedding("model.embed_tokens", text.vocab_size, text.hidden_size)
    layers = [
        Placed(
            Block(config, weights, index, make_feed_forward),
            AttentionLayer(*heads, text.windows[index]),
            rotary if is_rotated[index] else None,
        )
        for index in range(text.num_hidden_layers)
    ]
    norm = weights.norm("model.norm", text.hidden_size, text.rms_norm_eps)
    return Decoder(embed_tokens, layers, norm, head_of(text, weights))


def _qkv(config: DenseConfig, weights: Weights, prefix: str) -> Projections:
    width, widths = config.text.hidden_size, (config.query_width, config.kv_width, config.kv_width)
    if config.is_fused:
        layer = weights.linear(f"{prefix}.qkv_proj", sum(widths), width, bias=config.qkv_bias)
        return SplitLinear(layer, widths, weights.arithmetic)
    names = ("q_proj", "k_proj", "v_proj")
    layers = [
        weights.linear(f"{prefix}.{name}", outputs, width, bias=config.qkv_bias)
        for name, outputs in zip(names, widths, strict=True)
    ]
    return LinearGroup(layers, weights.arithmetic)
