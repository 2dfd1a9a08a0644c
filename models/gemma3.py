"""Gemma 3, the text model: windows in five layers of six, every head normalized, four normalizations a layer.

Source: Gemma Team 2025, arXiv:2503.19786; `Gemma3TextConfig` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from models.checkpoint.dialects import FULL, SLIDING
from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Rotary
from models.layers.cache import AttentionLayer, Rotation, Step
from models.layers.decoder import Decoder, Placed, head_of, ignore_other_models
from models.layers.embedding import ScaledEmbedding
from models.layers.linear import GatedLinear, LinearGroup
from models.layers.norms import RMSNorm
from models.layers.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers that fix the graph.

    Attributes:
        text: sizes, windows, and whether the head is the embedding.
        ropes: how positions turn into angles, by kind of layer.
        score_scale: multiplies scores.
        kinds: kind of each layer.
    """

    text: TextConfig
    ropes: dict[str, RopeConfig]
    score_scale: float
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, text: TextConfig) -> Config:
        """Take what a config says."""
        ropes = {kind: RopeConfig.of(parameters) for kind, parameters in text.rope.items()}
        scalar = text.head_dim if text.query_pre_attn_scalar is None else text.query_pre_attn_scalar
        return cls(text, ropes, scalar**-0.5, text.layer_types or (FULL,) * text.num_hidden_layers)


class Attention:
    """Self-attention whose queries and keys are normalized head by head."""

    def __init__(self, config: Config, weights: Weights, prefix: str, layer_index: int) -> None:
        text = config.text
        queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
        self._layer_index = layer_index
        self.q_proj = weights.linear(f"{prefix}.q_proj", queries, text.hidden_size)
        self.k_proj = weights.linear(f"{prefix}.k_proj", keys, text.hidden_size)
        self.v_proj = weights.linear(f"{prefix}.v_proj", keys, text.hidden_size)
        self.o_proj = weights.linear(f"{prefix}.o_proj", text.hidden_size, queries)
        self.q_norm = _norm(weights, f"{prefix}.q_norm", text.head_dim, text)
        self.k_norm = _norm(weights, f"{prefix}.k_norm", text.head_dim, text)
        self._qkv = LinearGroup((self.q_proj, self.k_proj, self.v_proj), weights.arithmetic)

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Return what each position of `x` [1, N, E] finds in its sequence up to itself."""
        queries, keys, values = self._qkv(x, step)  # [1, N, E] -> [1, N, H * D], twice [1, N, H_kv * D]
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        return self.o_proj(step.attend(self._layer_index, queries, keys, values, rotation), step)


class MLP:
    """The feed-forward part, gated by a gelu."""

    def __init__(self, text: TextConfig, weights: Weights, prefix: str) -> None:
        width, inner = text.hidden_size, text.intermediate_size
        self.gate_proj = weights.linear(f"{prefix}.gate_proj", inner, width)
        self.up_proj = weights.linear(f"{prefix}.up_proj", inner, width)
        self.down_proj = weights.linear(f"{prefix}.down_proj", width, inner)
        self._gated = GatedLinear(self.gate_proj, self.up_proj, weights.arithmetic, "gelu")

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Apply the part to every position of `x`."""
        return self.down_proj(self._gated(x, step), step)


class Block:
    """One layer: attention, then feed-forward, each normalized before and after and added to what went in."""

    def __init__(self, config: Config, weights: Weights, layer_index: int) -> None:
        text, prefix = config.text, f"model.layers.{layer_index}"
        self._add = weights.arithmetic.add
        self.self_attn = Attention(config, weights, f"{prefix}.self_attn", layer_index)
        self.mlp = MLP(text, weights, f"{prefix}.mlp")
        self.input_layernorm = _norm(weights, f"{prefix}.input_layernorm", text.hidden_size, text)
        self.post_attention_layernorm = _norm(weights, f"{prefix}.post_attention_layernorm", text.hidden_size, text)
        self.pre_feedforward_layernorm = _norm(weights, f"{prefix}.pre_feedforward_layernorm", text.hidden_size, text)
        self.post_feedforward_layernorm = _norm(weights, f"{prefix}.post_feedforward_layernorm", text.hidden_size, text)

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None) -> mx.array:
        """Apply the layer to `x` [1, N, E]."""
        found = self.self_attn(self.input_layernorm(x), step, rotation)
        x = self._add(x, self.post_attention_layernorm(found))
        return self._add(x, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x), step)))


def build(text: TextConfig, weights: Weights) -> Decoder:
    """Build the model, taking every tensor from `weights` and computing with their arithmetic.

    Raises:
        CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
    """
    ignore_other_models(weights)
    config = Config.of(text)
    rotaries = {kind: weights.arithmetic.rotary(text.head_dim, rope) for kind, rope in config.ropes.items()}
    embedding = weights.embedding("model.embed_tokens", text.vocab_size, text.hidden_size)
    # Rounded as the model was trained: to bfloat16.
    scale = mx.array([text.hidden_size**0.5], dtype=mx.bfloat16).astype(weights.compute_dtype)
    layers = [_placed(config, weights, index, rotaries) for index in range(text.num_hidden_layers)]
    norm = _norm(weights, "model.norm", text.hidden_size, text)
    return Decoder(ScaledEmbedding(embedding, scale, weights.arithmetic), layers, norm, head_of(text, weights))


def _placed(config: Config, weights: Weights, index: int, rotaries: dict[str, Rotary]) -> Placed:
    text, kind = config.text, config.kinds[index]
    window = text.sliding_window if kind == SLIDING else None
    heads = (text.num_attention_heads, text.num_key_value_heads, text.head_dim)
    kept = AttentionLayer(*heads, config.score_scale, window)
    return Placed(Block(config, weights, index), kept, rotaries[kind])


def _norm(weights: Weights, module: str, width: int, text: TextConfig) -> RMSNorm:
    return weights.norm(module, width, text.rms_norm_eps, is_stored_less_one=True)
