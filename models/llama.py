"""Llama: a decoder with rotary positions, grouped queries and a gated feed-forward part.

Source: Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from models.checkpoint.dialects import read_float, read_int, read_windows
from models.checkpoint.weights import Weights
from models.layers.cache import AttentionLayer, Rotation, Step
from models.layers.linear import GatedLinear, LinearGroup
from models.layers.rope import RopeConfig

_MAX_COUNT = 1 << 24


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers that fix the graph. Source: `LlamaConfig` of Hugging Face's transformers.

    Attributes:
        hidden_size: width E of the model.
        num_hidden_layers: number of blocks.
        intermediate_size: width of the feed-forward part.
        num_attention_heads: query heads H.
        num_key_value_heads: key and value heads; each serves H / this many query heads.
        head_dim: width D of a head; H * D need not be E.
        vocab_size: tokens V.
        rms_norm_eps: added to the mean square before the root.
        rope: how positions turn into angles.
        attention_bias: whether the four projections of attention add a bias.
        mlp_bias: whether the three projections of the feed-forward part do.
        tie_word_embeddings: whether the head is the embedding.
        windows: for each layer how many tokens a token sees, itself among them; None: all before it.
    """

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    windows: tuple[int | None, ...] = ()

    @classmethod
    def from_checkpoint(cls, raw: Mapping[str, Any], file: str = "config.json") -> Config:
        """Read what a checkpoint's config says.

        Args:
            raw: keys and values in the style of Hugging Face.
            file: base name of the file they come from, for errors.

        Raises:
            CheckpointRejected: a number is missing or out of range, or the config asks for a kind of layer or of rotary
                positions that this build lacks; named by its key.
        """
        hidden_size = read_int(raw, "hidden_size", file, maximum=_MAX_COUNT)
        heads = read_int(raw, "num_attention_heads", file, maximum=_MAX_COUNT)
        num_layers = read_int(raw, "num_hidden_layers", file, maximum=_MAX_COUNT)
        return cls(
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            intermediate_size=read_int(raw, "intermediate_size", file, maximum=_MAX_COUNT),
            num_attention_heads=heads,
            num_key_value_heads=read_int(raw, "num_key_value_heads", file, default=heads, maximum=heads),
            head_dim=read_int(raw, "head_dim", file, default=max(1, hidden_size // heads), maximum=_MAX_COUNT),
            vocab_size=read_int(raw, "vocab_size", file, maximum=_MAX_COUNT),
            rms_norm_eps=read_float(raw, "rms_norm_eps", file),
            rope=RopeConfig.from_checkpoint(raw, file),
            attention_bias=raw.get("attention_bias") is True,
            mlp_bias=raw.get("mlp_bias") is True,
            tie_word_embeddings=raw.get("tie_word_embeddings") is True,
            windows=read_windows(raw, num_layers, file),
        )


class Attention:
    """Self-attention with cached keys and values."""

    def __init__(self, config: Config, weights: Weights, prefix: str) -> None:
        width, bias = config.hidden_size, config.attention_bias
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = weights.linear(f"{prefix}.q_proj", query_width, width, bias=bias)
        self.k_proj = weights.linear(f"{prefix}.k_proj", kv_width, width, bias=bias)
        self.v_proj = weights.linear(f"{prefix}.v_proj", kv_width, width, bias=bias)
        self.o_proj = weights.linear(f"{prefix}.o_proj", width, query_width, bias=bias)
        self._qkv = LinearGroup((self.q_proj, self.k_proj, self.v_proj), weights.arithmetic)

    def add_to(self, total: mx.array, x: mx.array, step: Step, layer_index: int, rotation: Rotation) -> mx.array:
        """Add to `total` [1, N, E] what each position of `x` [1, N, E] finds in its sequence up to itself."""
        queries, keys, values = self._qkv(x, step)  # [1, N, E] -> [1, N, H * D], twice [1, N, H_kv * D]
        return self.o_proj.add_to(total, step.attend(layer_index, queries, keys, values, rotation), step)


class MLP:
    """The gated feed-forward part."""

    def __init__(self, config: Config, weights: Weights, prefix: str) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = weights.linear(f"{prefix}.gate_proj", inner, width, bias=bias)
        self.up_proj = weights.linear(f"{prefix}.up_proj", inner, width, bias=bias)
        self.down_proj = weights.linear(f"{prefix}.down_proj", width, inner, bias=bias)
        self._gated = GatedLinear(self.gate_proj, self.up_proj, weights.arithmetic)

    def add_to(self, total: mx.array, x: mx.array, step: Step) -> mx.array:
        """Add to `total` [1, N, E] what the part gives for each position of `x` [1, N, E]."""
        return self.down_proj.add_to(total, self._gated(x, step), step)


class Block:
    """One layer: attention, then feed-forward, each added to what went in."""

    def __init__(self, config: Config, weights: Weights, prefix: str) -> None:
        self.self_attn = Attention(config, weights, f"{prefix}.self_attn")
        self.mlp = MLP(config, weights, f"{prefix}.mlp")
        norms = (config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = weights.norm(f"{prefix}.input_layernorm", *norms)
        self.post_attention_layernorm = weights.norm(f"{prefix}.post_attention_layernorm", *norms)

    def __call__(self, x: mx.array, step: Step, layer_index: int, rotation: Rotation) -> mx.array:
        """Apply the layer to `x` [1, N, E]."""
        x = self.self_attn.add_to(x, self.input_layernorm(x), step, layer_index, rotation)
        return self.mlp.add_to(x, self.post_attention_layernorm(x), step)


class Llama:
    """The whole model; `hidden` and `head` apart, so that only the positions in need get logits."""

    def __init__(self, config: Config, weights: Weights) -> None:
        """Take every tensor from `weights`, and compute with their arithmetic.

        Raises:
            CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
        """
        self.config = config
        self._rotary = weights.arithmetic.rotary(config.head_dim, config.rope)
        self.embed_tokens = weights.embedding("model.embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [Block(config, weights, f"model.layers.{index}") for index in range(config.num_hidden_layers)]
        self.norm = weights.norm("model.norm", config.hidden_size, config.rms_norm_eps)
        if config.tie_word_embeddings:
            weights.ignore("lm_head")
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self.lm_head = weights.linear(head, config.vocab_size, config.hidden_size)

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """What a cache has to know of each layer."""
        config = self.config
        heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim**-0.5)
        return tuple(AttentionLayer(*heads, window) for window in config.windows)

    def hidden(self, step: Step) -> mx.array:
        """Compute what the head reads, and add the step's keys and values to the cache.

        Returns:
            Compute dtype [1, N, E], not evaluated.
        """
        x = self.embed_tokens(step.tokens)  # [1, N] -> [1, N, E]
        rotation = self._rotary.at(step)
        for index, layer in enumerate(self.layers):
            x = layer(x, step, index, rotation)
        return self.norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        """Turn positions [1, M, E] into logits [1, M, V] in the compute dtype, not evaluated."""
        return self.lm_head(hidden, None)
