"""Gemma 4, the text model: heads of another width where a layer sees everything, and much that is optional.

Some of its models let trailing layers look at an earlier layer's keys and values, give each layer embeddings of its
own, take values from the projection of the keys, or have routed experts beside the feed-forward part of every layer.
Scores are not scaled: queries and keys are normalized head by head, and values too.

Source: `Gemma4TextConfig` and `Gemma4ForCausalLM` of transformers 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from models.checkpoint.dialects import FULL, SLIDING
from models.checkpoint.expert_tensors import ExpertsShape
from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Rotary
from models.layers.cache import AttentionLayer, Rotation, Step
from models.layers.decoder import Rotations, head_of, ignore_other_models
from models.layers.embedding import ScaledEmbedding
from models.layers.linear import GatedLinear, LinearGroup
from models.layers.mixture import Mixture, ScaledRouter
from models.layers.norms import RMSNorm
from models.layers.rope import RopeConfig

_SCORE_SCALE = 1.0
# What published files hold of layers that read another layer's keys and values.
_UNREAD_SHARED = ("k_proj", "v_proj", "k_norm")


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs from layer to layer.

    Attributes:
        index: number of the layer.
        kind: `full_attention` or `sliding_attention`.
        head_dim: width D of a head.
        num_kv_heads: heads of keys and values.
        source: the layer whose keys and values it reads: itself, or an earlier one.
        is_source: whether a later layer reads its keys and values.
        has_value_projection: whether values have a projection of their own.
        intermediate_size: width of the feed-forward part.
    """

    index: int
    kind: str
    head_dim: int
    num_kv_heads: int
    source: int
    is_source: bool
    has_value_projection: bool
    intermediate_size: int


def layer_configs(text: TextConfig) -> tuple[LayerConfig, ...]:
    """Say what each layer of a model is like."""
    num_own = text.num_hidden_layers - text.num_kv_shared_layers
    last = {kind: index for index, kind in enumerate(text.layer_types[:num_own])}
    sources = [index if index < num_own else last[kind] for index, kind in enumerate(text.layer_types)]
    return tuple(_layer_config(text, index, sources) for index in range(text.num_hidden_layers))


def _layer_config(text: TextConfig, index: int, sources: list[int]) -> LayerConfig:
    kind, is_shared = text.layer_types[index], sources[index] != index
    is_full = kind == FULL
    is_key_value = text.is_key_value and is_full
    return LayerConfig(
        index=index,
        kind=kind,
        head_dim=text.global_head_dim if is_full else text.head_dim,
        num_kv_heads=text.num_global_key_value_heads if is_key_value else text.num_key_value_heads,
        source=sources[index],
        is_source=sources.count(index) > 1,
        has_value_projection=not is_key_value,
        intermediate_size=text.intermediate_size * (2 if text.is_double_wide and is_shared else 1),
    )


class Attention:
    """Self-attention over the layer's own keys and values, or those of an earlier layer."""

    def __init__(self, text: TextConfig, layer: LayerConfig, weights: Weights) -> None:
        prefix, width, eps = f"model.layers.{layer.index}.self_attn", text.hidden_size, text.rms_norm_eps
        queries, keys = text.num_attention_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        self._source = layer.source
        self._has_own = layer.source == layer.index
        self.q_proj = weights.linear(f"{prefix}.q_proj", queries, width)
        self.q_norm = weights.norm(f"{prefix}.q_norm", layer.head_dim, eps)
        layers = [self.q_proj]
        if self._has_own:
            self.k_proj = weights.linear(f"{prefix}.k_proj", keys, width)
            self.k_norm = weights.norm(f"{prefix}.k_norm", layer.head_dim, eps)
            self._v_norm = RMSNorm(mx.ones((layer.head_dim,), weights.compute_dtype), eps, weights.arithmetic)
            layers.append(self.k_proj)
        else:
            for name in _UNREAD_SHARED:
                weights.ignore(f"{prefix}.{name}")
        if self._has_own and layer.has_value_projection:
            self.v_proj = weights.linear(f"{prefix}.v_proj", keys, width)
            layers.append(self.v_proj)
        self.o_proj = weights.linear(f"{prefix}.o_proj", width, queries)
        self._projections = LinearGroup(layers, weights.arithmetic)

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None, kept: KeysAndValues) -> mx.array:
        """Return what each position of `x` [1, N, E] finds in its sequence up to itself.

        Args:
            x: [1, N, E].
            step: where keys and values go.
            rotation: applies positions.
            kept: keys and values of the layers before; the layer's own are added.
        """
        queries, *own = self._projections(x, step)  # [1, N, E] -> [1, N, H * D], up to twice [1, N, H_kv * D]
        queries = self.q_norm(queries)
        if not self._has_own:
            return self.o_proj(step.attend_again(self._source, queries, *kept[self._source], rotation), step)
        keys, values = self.k_norm(own[0]), self._v_norm(own[-1])
        kept[self._source] = keys, values
        return self.o_proj(step.attend(self._source, queries, keys, values, rotation), step)


# Keys and values of one step as layers gave them to the cache, by the number of the layer.
KeysAndValues = dict[int, tuple[mx.array, mx.array]]


class MLP:
    """The feed-forward part, gated by a gelu."""

    def __init__(self, text: TextConfig, layer: LayerConfig, weights: Weights) -> None:
        outer, width, inner = f"model.layers.{layer.index}", text.hidden_size, layer.intermediate_size
        prefix = f"{outer}.mlp"
        self.pre_feedforward_layernorm = weights.norm(f"{outer}.pre_feedforward_layernorm", width, text.rms_norm_eps)
        self.gate_proj = weights.linear(f"{prefix}.gate_proj", inner, width)
        self.up_proj = weights.linear(f"{prefix}.up_proj", inner, width)
        self.down_proj = weights.linear(f"{prefix}.down_proj", width, inner)
        self._gated = GatedLinear(self.gate_proj, self.up_proj, weights.arithmetic, "gelu")

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Apply the part to every position of `x` [1, N, E], normalized first."""
        return self.down_proj(self._gated(self.pre_feedforward_layernorm(x), step), step)


class RoutedMLP:
    """A feed-forward part and routed experts beside it, which read `x` each through a normalization of its own."""

    def __init__(self, text: TextConfig, layer: LayerConfig, weights: Weights, mlp: MLP) -> None:
        prefix, norms = f"model.layers.{layer.index}", (text.hidden_size, text.rms_norm_eps)
        self._add = weights.arithmetic.add
        self._mlp = mlp
        self.mixture = _mixture(text, layer, weights)
        self.post_feedforward_layernorm_1 = weights.norm(f"{prefix}.post_feedforward_layernorm_1", *norms)
        self.pre_feedforward_layernorm_2 = weights.norm(f"{prefix}.pre_feedforward_layernorm_2", *norms)
        self.post_feedforward_layernorm_2 = weights.norm(f"{prefix}.post_feedforward_layernorm_2", *norms)

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Apply both to every position of `x` [1, N, E], and add what they give."""
        answers = self.mixture.start(self.pre_feedforward_layernorm_2(x), step, routed_by=x)
        own = self.post_feedforward_layernorm_1(self._mlp(x, step))
        return self._add(own, self.post_feedforward_layernorm_2(answers(own)))


def _mixture(text: TextConfig, layer: LayerConfig, weights: Weights) -> Mixture:
    prefix, width, experts = f"model.layers.{layer.index}", text.hidden_size, text.experts
    scale = weights.tensor(f"{prefix}.router.scale", (width,), factor=width**-0.5)
    router = ScaledRouter(
        RMSNorm(scale, text.rms_norm_eps, weights.arithmetic),
        weights.linear(f"{prefix}.router.proj", experts.num_experts, width),
        weights.tensor(f"{prefix}.router.per_expert_scale", (experts.num_experts,)),
        experts.num_chosen,
        weights.arithmetic,
    )
    module, sizes = f"{prefix}.experts.switch_glu", (experts.num_experts, experts.intermediate_size, width)
    routed = weights.experts(ExpertsShape(layer.index, module, *sizes), "gelu")
    return Mixture(layer.index, router, routed, weights.arithmetic, observe=weights.experts_hooks.observe)


class LayerInput:
    """What a layer adds of the embeddings that are its own."""

    def __init__(self, text: TextConfig, layer: LayerConfig, weights: Weights) -> None:
        prefix, width, inner = f"model.layers.{layer.index}", text.hidden_size, text.hidden_size_per_layer_input
        self._arithmetic = weights.arithmetic
        self._range = (layer.index * inner, (layer.index + 1) * inner)
        self.per_layer_input_gate = weights.linear(f"{prefix}.per_layer_input_gate", inner, width)
        self.per_layer_projection = weights.linear(f"{prefix}.per_layer_projection", width, inner)
        self.post_per_layer_input_norm = weights.norm(f"{prefix}.post_per_layer_input_norm", width, text.rms_norm_eps)

    def __call__(self, x: mx.array, inputs: mx.array, step: Step) -> mx.array:
        """Add to `x` [1, N, E] what the layer makes of its part of `inputs` [1, N, layers * P]."""
        own = self._arithmetic.columns(inputs, *self._range)
        gated = self._arithmetic.gelu_gate(self.per_layer_input_gate(x, step), own)
        return self._arithmetic.add(x, self.post_per_layer_input_norm(self.per_layer_projection(gated, step)))


class LayerInputs:
    """The embeddings that each layer gets of its own: those of the token, joined with a projection of its vector."""

    def __init__(self, text: TextConfig, weights: Weights) -> None:
        inner = text.hidden_size_per_layer_input
        together = text.num_hidden_layers * inner
        self._arithmetic = weights.arithmetic
        self.embed_tokens_per_layer = ScaledEmbedding(
            weights.embedding("model.embed_tokens_per_layer", text.vocab_size_per_layer_input, together),
            _number(inner**0.5, weights),
            weights.arithmetic,
        )
        self.per_layer_model_projection = weights.linear("model.per_layer_model_projection", together, text.hidden_size)
        self.per_layer_projection_norm = weights.norm("model.per_layer_projection_norm", inner, text.rms_norm_eps)
        self._projection_scale = _number(text.hidden_size**-0.5, weights)
        self._scale = _number(2.0**-0.5, weights)

    def __call__(self, tokens: mx.array, x: mx.array, step: Step) -> mx.array:
        """Turn tokens [1, N] and their vectors [1, N, E] into [1, N, layers * P]."""
        multiply = self._arithmetic.multiply
        projected = multiply(self.per_layer_model_projection(x, step), self._projection_scale)
        together = self._arithmetic.add(self.per_layer_projection_norm(projected), self.embed_tokens_per_layer(tokens))
        return multiply(together, self._scale)


class Block:
    """One layer: attention, then feed-forward, each normalized before and after and added; then its own input."""

    def __init__(self, text: TextConfig, layer: LayerConfig, weights: Weights) -> None:
        prefix, norms = f"model.layers.{layer.index}", (text.hidden_size, text.rms_norm_eps)
        self._arithmetic = weights.arithmetic
        self.self_attn = Attention(text, layer, weights)
        mlp = MLP(text, layer, weights)
        self.mlp = RoutedMLP(text, layer, weights, mlp) if text.experts.is_enabled else mlp
        self.input_layernorm = weights.norm(f"{prefix}.input_layernorm", *norms)
        self.post_attention_layernorm = weights.norm(f"{prefix}.post_attention_layernorm", *norms)
        self.post_feedforward_layernorm = weights.norm(f"{prefix}.post_feedforward_layernorm", *norms)
        self._layer_input = LayerInput(text, layer, weights) if text.hidden_size_per_layer_input else None
        self.layer_scalar = weights.tensor(f"{prefix}.layer_scalar", (1,))

    def __call__(
        self, x: mx.array, step: Step, rotation: Rotation | None, kept: KeysAndValues, inputs: mx.array | None
    ) -> mx.array:
        """Apply the layer to `x` [1, N, E]; `inputs` [1, N, layers * P] where layers have embeddings of their own."""
        add = self._arithmetic.add
        found = self.self_attn(self.input_layernorm(x), step, rotation, kept)
        x = add(x, self.post_attention_layernorm(found))
        x = add(x, self.post_feedforward_layernorm(self.mlp(x, step)))
        if self._layer_input is not None and inputs is not None:
            x = self._layer_input(x, inputs, step)
        return self._arithmetic.multiply(x, self.layer_scalar)


class Gemma4:
    """The whole model; `hidden` and `head` apart, so that only the positions in need get logits."""

    def __init__(self, text: TextConfig, weights: Weights) -> None:
        """Take every tensor from `weights`, and compute with their arithmetic.

        Raises:
            CheckpointCorrupt, CheckpointRejected: a tensor is missing or has another shape, by name.
        """
        ignore_other_models(weights)
        self.config = text
        self._arithmetic = weights.arithmetic
        self._layer_configs = layer_configs(text)
        self._rotaries = _rotaries(text, weights)
        embedding = weights.embedding("model.embed_tokens", text.vocab_size, text.hidden_size)
        self.embed_tokens = ScaledEmbedding(embedding, _number(text.hidden_size**0.5, weights), weights.arithmetic)
        self._layer_inputs = LayerInputs(text, weights) if text.hidden_size_per_layer_input else None
        self.layers = [Block(text, layer, weights) for layer in self._layer_configs]
        self.norm = weights.norm("model.norm", text.hidden_size, text.rms_norm_eps)
        self.lm_head = head_of(text, weights)

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """What a cache has to know of each layer that has keys and values of its own."""
        return tuple(
            AttentionLayer(
                self.config.num_attention_heads,
                layer.num_kv_heads,
                layer.head_dim,
                _SCORE_SCALE,
                self.config.sliding_window if layer.kind == SLIDING else None,
                layer.is_source,
            )
            for layer in self._layer_configs
            if layer.source == layer.index
        )

    def hidden(self, step: Step) -> mx.array:
        """See `TextModel.hidden`."""
        x = self.embed_tokens(step.tokens)  # [1, N] -> [1, N, E]
        inputs = None if self._layer_inputs is None else self._layer_inputs(step.tokens, x, step)
        rotations, kept = Rotations(step), KeysAndValues()
        for block, layer in zip(self.layers, self._layer_configs, strict=True):
            x = block(x, step, rotations.of(self._rotaries[layer.kind]), kept, inputs)
        return self.norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        """See `TextModel.head`."""
        logits, bound = self.lm_head(hidden, None), self.config.final_logit_softcapping
        return logits if bound is None else self._arithmetic.soft_bound(logits, bound)


def _rotaries(text: TextConfig, weights: Weights) -> dict[str, Rotary]:
    widths = {FULL: text.global_head_dim, SLIDING: text.head_dim}
    return {
        kind: weights.arithmetic.rotary(widths[kind], RopeConfig.of(parameters, traditional=text.rope_traditional))
        for kind, parameters in text.rope.items()
        if kind in widths
    }


def _number(value: float, weights: Weights) -> mx.array:
    return mx.array([value], dtype=weights.compute_dtype)
