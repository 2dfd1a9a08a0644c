"""Qwen 3.5: three layers of gated linear attention to one that sees everything, whose output is gated too.

What linear attention keeps of a sequence is a state of fixed size (`models.layers.gated_delta`). The feed-forward part
is dense, or a mixture of experts with one that every token goes through.

Source: `Qwen3_5TextConfig`, `Qwen3_5MoeTextConfig` and their models of transformers 5.
"""

from __future__ import annotations

import mlx.core as mx

from models.checkpoint.kv_sizes import linear_state
from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.cache import AttentionLayer, KeptLayer, Rotation, Step
from models.layers.decoder import Decoder, Placed, head_of, ignore_other_models
from models.layers.dense import MLP, DenseConfig, FeedForward, full_rope
from models.layers.gated_delta import DeltaRule
from models.layers.linear import LinearGroup
from models.layers.mixture import qwen_mixture
from models.layers.recurrence import RecurrentLayer

# What sees pictures, and what guesses tokens ahead.
_LEFT_OUT = ("model.visual", "mtp", "model.mtp")


class Attention:
    """Self-attention over everything before; a sigmoid, of what the projection of queries gives besides, gates it."""

    def __init__(self, text: TextConfig, weights: Weights, layer_index: int) -> None:
        prefix, width, bias = f"model.layers.{layer_index}.self_attn", text.hidden_size, text.attention_bias is True
        queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
        self._layer_index = layer_index
        self._num_heads = text.num_attention_heads
        self._sigmoid_gate = weights.arithmetic.sigmoid_gate
        self.q_proj = weights.linear(f"{prefix}.q_proj", 2 * queries, width, bias=bias)
        self.k_proj = weights.linear(f"{prefix}.k_proj", keys, width, bias=bias)
        self.v_proj = weights.linear(f"{prefix}.v_proj", keys, width, bias=bias)
        self.o_proj = weights.linear(f"{prefix}.o_proj", width, queries, bias=bias)
        self.q_norm = weights.norm(f"{prefix}.q_norm", text.head_dim, text.rms_norm_eps)
        self.k_norm = weights.norm(f"{prefix}.k_norm", text.head_dim, text.rms_norm_eps)
        self._projections = LinearGroup((self.q_proj, self.k_proj, self.v_proj), weights.arithmetic)

    def add_to(self, total: mx.array, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Add to `total` [1, N, E] what each position of `x` [1, N, E] finds in its sequence up to itself."""
        both, keys, values = self._projections(x, step)
        heads = mx.unflatten(both, -1, (self._num_heads, 2, -1))  # [1, N, H * 2 * D] -> [1, N, H, 2, D]
        queries = mx.flatten(self.q_norm(heads[..., 0, :]), 2)
        mixed = step.attend(self._layer_index, queries, self.k_norm(keys), values, rotation)
        gated = self._sigmoid_gate(mixed, mx.flatten(heads[..., 1, :], 2))
        return self.o_proj.add_to(total, gated, step)


class GatedDeltaNet:
    """Linear attention by the gated delta rule; what each head finds is normalized and gated by a silu."""

    def __init__(self, text: TextConfig, weights: Weights, layer_index: int) -> None:
        config, prefix, width = text.linear_attention, f"model.layers.{layer_index}.linear_attn", text.hidden_size
        num_heads = config.num_value_heads
        values = num_heads * config.value_head_dim
        channels = 2 * config.num_key_heads * config.key_head_dim + values
        self._layer_index = layer_index
        self.in_proj_qkv = weights.linear(f"{prefix}.in_proj_qkv", channels, width)
        self.in_proj_z = weights.linear(f"{prefix}.in_proj_z", values, width)
        self.in_proj_b = weights.linear(f"{prefix}.in_proj_b", num_heads, width)
        self.in_proj_a = weights.linear(f"{prefix}.in_proj_a", num_heads, width)
        self.out_proj = weights.linear(f"{prefix}.out_proj", width, values)
        self._projections = LinearGroup(
            (self.in_proj_qkv, self.in_proj_a, self.in_proj_b, self.in_proj_z), weights.arithmetic
        )
        rule = DeltaRule(
            num_key_heads=config.num_key_heads,
            num_value_heads=num_heads,
            key_dim=config.key_head_dim,
            value_dim=config.value_head_dim,
            convolution=weights.tensor(f"{prefix}.conv1d.weight", (channels, config.conv_kernel_size, 1)),
            # It is an exponent of exponents.
            decay_logs=weights.tensor(f"{prefix}.A_log", (num_heads,), mx.float32),
            decay_biases=weights.tensor(f"{prefix}.dt_bias", (num_heads,)),
        )
        self._recurrence = weights.arithmetic.gated_delta(rule)
        self.norm = weights.gated_norm(f"{prefix}.norm", config.value_head_dim, text.rms_norm_eps)

    def add_to(self, total: mx.array, x: mx.array, step: Step, _rotation: Rotation | None) -> mx.array:
        """Add to `total` [1, N, E] what each position of `x` [1, N, E] reads from its sequence's memory."""
        *inputs, gate = self._projections(x, step)  # [1, N, E] -> [1, N, C], twice [1, N, H_v], [1, N, H_v * D_v]
        found = step.recur(self._layer_index, self._recurrence, inputs)
        return self.out_proj.add_to(total, self.norm(found, gate), step)


class Block:
    """One layer: attention of either kind, then feed-forward, each added to what went in."""

    def __init__(self, text: TextConfig, weights: Weights, layer_index: int) -> None:
        prefix = f"model.layers.{layer_index}"
        self.attention: Attention | GatedDeltaNet
        if text.linear_layers[layer_index]:
            self.attention = GatedDeltaNet(text, weights, layer_index)
        else:
            self.attention = Attention(text, weights, layer_index)
        self.mlp: FeedForward
        if text.experts.has_experts(layer_index):
            self.mlp = qwen_mixture(weights, text.experts, layer_index, text.hidden_size)
        else:
            self.mlp = MLP(DenseConfig(text), weights, layer_index)
        norms = (text.hidden_size, text.rms_norm_eps)
        self.input_layernorm = weights.norm(f"{prefix}.input_layernorm", *norms)
        self.post_attention_layernorm = weights.norm(f"{prefix}.post_attention_layernorm", *norms)

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Apply the layer to `x` [1, N, E]."""
        x = self.attention.add_to(x, self.input_layernorm(x), step, rotation)
        return self.mlp.add_to(x, self.post_attention_layernorm(x), step)


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model, taking every tensor from `weights` and computing with their arithmetic.

    Raises:
        CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
    """
    ignore_other_models(weights)
    for part in _LEFT_OUT:
        weights.ignore(part)
    rotary = weights.arithmetic.rotary(text.head_dim, full_rope(text))
    embed_tokens = weights.embedding("model.embed_tokens", text.vocab_size, text.hidden_size)
    layers = [
        Placed(Block(text, weights, index), _kept(text, is_linear=is_linear), None if is_linear else rotary)
        for index, is_linear in enumerate(text.linear_layers)
    ]
    norm = weights.norm("model.norm", text.hidden_size, text.rms_norm_eps)
    return Decoder(embed_tokens, layers, norm, head_of(text, weights))


def _kept(text: TextConfig, *, is_linear: bool) -> KeptLayer:
    if is_linear:
        return RecurrentLayer(linear_state(text))
    heads = (text.num_attention_heads, text.num_key_value_heads, text.head_dim)
    return AttentionLayer(*heads, text.head_dim**-0.5)
