"""What a config.json says of a text model, typed: sizes, kinds of layers, positions, stop tokens.

The rules are those of the reference system for every architecture that it reads; whether this build runs one is said in
`models.checkpoint.architectures`. Keys: the configurations of Hugging Face's transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.dialects import FULL, LINEAR, SLIDING, Dialect, dialect_for, model_type_of, plain_name
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.rope_parameters import RopeParameters, read_rope, read_share
from models.checkpoint.values import (
    MAX_LAYERS,
    MAX_TOKENS,
    read_bool,
    read_float,
    read_int,
    read_list,
    read_object,
    read_optional_float,
    read_optional_int,
    read_token_ids,
    read_word,
)

CONFIG_FILE = "config.json"
# Source: `Qwen3_5TextConfig` of transformers 5 and `TextModelArgs` of mlx-lm 0.32.2.
_FULL_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Routed experts of a mixture; all 0 or empty where a model has none.

    Attributes:
        is_enabled: whether each layer has experts beside its feed-forward part (Gemma 4).
        num_experts: of a layer.
        num_chosen: experts that each token is given to.
        intermediate_size: width of an expert's feed-forward part.
        shared_size: width of the expert that every token goes through; 0: there is none.
        sparse_step: of the layers, numbered from 1, each multiple of this has experts (Qwen3 MoE).
        dense_layers: numbers of layers, from 0, that have none in any case.
        is_normalized: whether the weights of the chosen experts are made to sum to 1.
    """

    is_enabled: bool = False
    num_experts: int = 0
    num_chosen: int = 0
    intermediate_size: int = 0
    shared_size: int = 0
    sparse_step: int = 1
    dense_layers: tuple[int, ...] = ()
    is_normalized: bool = False

    def has_experts(self, layer: int) -> bool:
        """Tell whether a layer, numbered from 0, is a mixture by Qwen3 MoE's rule."""
        return self.num_experts > 0 and layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """Gated linear attention of Qwen3.5's layers; all 0 where a model has none.

    Attributes:
        num_value_heads: heads of values.
        num_key_heads: heads of keys.
        key_head_dim: width of a key's head.
        value_head_dim: width of a value's head.
        conv_kernel_size: tokens that the convolution before it sees.
        full_attention_interval: each so-many-th layer sees every token instead.
        has_output_gate: whether full attention has twice as wide a query projection, the second half of which gates
            its output.
    """

    num_value_heads: int = 0
    num_key_heads: int = 0
    key_head_dim: int = 0
    value_head_dim: int = 0
    conv_kernel_size: int = 0
    full_attention_interval: int = 0
    has_output_gate: bool = False


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The text model of a checkpoint.

    Attributes:
        model_type: name of the architecture.
        container: the converted container whose own reader states sizes; None for plain files.
        hidden_size: width E of the model.
        num_hidden_layers: number of layers.
        intermediate_size: width of the feed-forward part.
        num_attention_heads: query heads H.
        num_key_value_heads: heads of keys and values.
        head_dim: width D of a head; E / H, rounded down, where nothing is said.
        num_global_key_value_heads: those of layers that see everything; `num_key_value_heads` where nothing is said.
        global_head_dim: width of a head in those layers; `head_dim` where nothing is said.
        is_key_value: whether in those layers values are the keys' projection (`attention_k_eq_v`).
        hidden_activation: of the feed-forward part, a word of transformers.
        rms_norm_eps: added to a mean square before its root.
        vocab_size: tokens V.
        max_position_embeddings: longest sequence of training, in tokens; None where nothing is said.
        sliding_window: tokens that a sliding layer's token sees, itself among them; 0: none.
        layer_types: kind of each layer; empty where neither file nor architecture says.
        hidden_size_per_layer_input: width of the embeddings that each layer gets of its own (Gemma 4 e2b and e4b); 0:
            none.
        vocab_size_per_layer_input: tokens that have such embeddings.
        num_kv_shared_layers: trailing layers that read the keys and values of an earlier layer of their kind.
        is_double_wide: whether the feed-forward part of those layers is twice as wide (`use_double_wide_mlp`).
        query_pre_attn_scalar: scores are multiplied by its root's inverse (Gemma 3); None where nothing is said.
        experts: routed experts.
        linear_attention: gated linear attention.
        attention_bias: whether projections of attention add a bias; None where nothing is said.
        mlp_bias: whether those of the feed-forward part do.
        rope: rotary positions by kind of attention.
        rope_traditional: whether neighbours are turned instead of halves.
        partial_rotary_factor: share of a head that is turned, where one number speaks for all layers.
        rotated_layers: for each layer whether positions are applied (SmolLM3); empty: all.
        final_logit_softcapping: bound c of logits, c * tanh(x / c); None: unbounded.
        attn_logit_softcapping: the same of scores.
        tie_word_embeddings: whether the head is the embedding.
        bos_token_id: begins a text; None where nothing is said.
        eos_token_ids: end a text, as the text part says, else its wrapper.
        canvas_length: tokens that DiffusionGemma denoises together; None elsewhere.
    """

    model_type: str
    container: str | None
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_global_key_value_heads: int
    global_head_dim: int
    is_key_value: bool
    hidden_activation: str
    rms_norm_eps: float
    vocab_size: int
    max_position_embeddings: int | None
    sliding_window: int
    layer_types: tuple[str, ...]
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int
    is_double_wide: bool
    query_pre_attn_scalar: float | None
    experts: ExpertsConfig
    linear_attention: LinearAttentionConfig
    attention_bias: bool | None
    mlp_bias: bool
    rope: Mapping[str, RopeParameters]
    rope_traditional: bool
    partial_rotary_factor: float
    rotated_layers: tuple[bool, ...]
    final_logit_softcapping: float | None
    attn_logit_softcapping: float | None
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    canvas_length: int | None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer how many tokens a token sees, itself among them; None: all before it."""
        if not self.layer_types:
            return (None,) * self.num_hidden_layers
        return tuple(self.sliding_window if kind == SLIDING else None for kind in self.layer_types)

    @property
    def linear_layers(self) -> tuple[bool, ...]:
        """For each layer whether it is one of gated linear attention, which keeps a state instead of keys and values.

        `layer_types` say so, else every layer but each n-th is one.
        """
        if not self.linear_attention.num_value_heads:
            return (False,) * self.num_hidden_layers
        if self.layer_types:
            return tuple(kind == LINEAR for kind in self.layer_types)
        interval = self.linear_attention.full_attention_interval or _FULL_INTERVAL
        return tuple((index + 1) % interval != 0 for index in range(self.num_hidden_layers))


def read_text_config(raw: Mapping[str, Any], file: str = CONFIG_FILE) -> TextConfig:
    """Read a config, nested in `text_config` or flat.

    Args:
        raw: the parsed file.
        file: its base name, for errors.

    Raises:
        CheckpointRejected: a value is missing or none that the key may have; naming the file and the key.
    """
    nested = read_object(raw, "text_config", file)
    stated = raw if nested is None else nested
    model_type = plain_name(read_model_type(raw, file))
    dialect = dialect_for(model_type)
    stated = _without_nulls(stated)
    text = {**dialect.defaults(stated), **stated}
    dialect.check(text, file)
    return _read(model_type, dialect, text, _without_nulls(raw), file)


def read_model_type(raw: Mapping[str, Any], file: str = CONFIG_FILE) -> str:
    """Return the word for the architecture, of the text model within a wrapper; raises as `read_text_config`."""
    nested = read_object(raw, "text_config", file)
    stated = _without_nulls(raw) | _without_nulls(nested or {})
    named = model_type_of(read_list(raw, "architectures", file) or [])
    return read_word(stated, "model_type", file, default=named)


def _without_nulls(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _read(model_type: str, dialect: Dialect, text: Mapping[str, Any], raw: Mapping[str, Any], file: str) -> TextConfig:
    sizes = _sizes(text, file)
    num_layers, vocab_size = sizes["num_hidden_layers"], sizes["vocab_size"]
    both = {**raw, **text}
    return TextConfig(
        model_type=model_type,
        container=dialect.container,
        **sizes,
        is_key_value=read_bool(text, "attention_k_eq_v", file),
        hidden_activation=_activation(text, file),
        rms_norm_eps=read_float(text, "rms_norm_eps", file),
        max_position_embeddings=read_optional_int(text, "max_position_embeddings", file, maximum=MAX_TOKENS),
        sliding_window=read_int(text, "sliding_window", file, default=0, minimum=0, maximum=MAX_TOKENS),
        layer_types=_layer_types(text, dialect, num_layers, file),
        hidden_size_per_layer_input=_count(text, "hidden_size_per_layer_input", file),
        vocab_size_per_layer_input=read_int(text, "vocab_size_per_layer_input", file, default=vocab_size),
        num_kv_shared_layers=_count(text, "num_kv_shared_layers", file),
        is_double_wide=read_bool(text, "use_double_wide_mlp", file),
        query_pre_attn_scalar=read_optional_float(text, "query_pre_attn_scalar", file),
        experts=_experts(text, file),
        linear_attention=_linear_attention(text, file),
        attention_bias=None if text.get("attention_bias") is None else read_bool(text, "attention_bias", file),
        mlp_bias=read_bool(text, "mlp_bias", file),
        rope=read_rope(text, dialect.rope, file),
        rope_traditional=read_bool(text, "rope_traditional", file),
        partial_rotary_factor=_partial_rotary_factor(text, file),
        rotated_layers=_rotated_layers(text, num_layers, file),
        final_logit_softcapping=read_optional_float(text, "final_logit_softcapping", file),
        attn_logit_softcapping=read_optional_float(text, "attn_logit_softcapping", file),
        tie_word_embeddings=read_bool(both, "tie_word_embeddings", file),
        bos_token_id=next(iter(read_token_ids(both, "bos_token_id", file)), None),
        eos_token_ids=read_token_ids(both, "eos_token_id", file),
        canvas_length=read_optional_int({**text, **raw}, "canvas_length", file),
    )


def _sizes(text: Mapping[str, Any], file: str) -> dict[str, int]:
    heads = read_int(text, "num_attention_heads", file)
    hidden = read_int(text, "hidden_size", file)
    kv_heads = read_int(text, "num_key_value_heads", file, default=heads, maximum=heads)
    head_dim = read_int(text, "head_dim", file, default=max(1, hidden // heads))
    return {
        "hidden_size": hidden,
        "num_hidden_layers": read_int(text, "num_hidden_layers", file, maximum=MAX_LAYERS),
        "intermediate_size": read_int(text, "intermediate_size", file),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_global_key_value_heads": read_int(text, "num_global_key_value_heads", file, default=kv_heads),
        "global_head_dim": read_int(text, "global_head_dim", file, default=head_dim),
        "vocab_size": read_int(text, "vocab_size", file),
    }


def _activation(text: Mapping[str, Any], file: str) -> str:
    key = "hidden_activation" if text.get("hidden_activation") is not None else "hidden_act"
    return read_word(text, key, file, default="gelu_pytorch_tanh")


def _layer_types(text: Mapping[str, Any], dialect: Dialect, num_layers: int, file: str) -> tuple[str, ...]:
    kinds = read_list(text, "layer_types", file)
    if kinds is None:
        return (FULL,) * num_layers if dialect.is_full_by_default else ()
    words = tuple(kind for kind in kinds if isinstance(kind, str))
    if len(words) != len(kinds) or len(words) != num_layers:
        raise CheckpointRejected("is not a list of one word for each layer", file=file, key="layer_types")
    return words


def _rotated_layers(text: Mapping[str, Any], num_layers: int, file: str) -> tuple[bool, ...]:
    flags = read_list(text, "no_rope_layers", file)
    if flags is None:
        return ()
    # The key says the opposite of its name: 1 where positions are applied. Source: `SmolLM3Config` of transformers.
    found = tuple(flag == 1 for flag in flags if type(flag) in (int, bool) and flag in (0, 1))
    if len(found) != len(flags) or len(found) != num_layers:
        raise CheckpointRejected("is not a list of 0 or 1 for each layer", file=file, key="no_rope_layers")
    return found


def _partial_rotary_factor(text: Mapping[str, Any], file: str) -> float:
    block = read_object(text, "rope_parameters", file) or {}
    key = "rope_parameters.partial_rotary_factor"
    if block.get("partial_rotary_factor") is not None:
        return read_share({key: block["partial_rotary_factor"]}, key, file)
    return read_share(text, "partial_rotary_factor", file)


def _experts(text: Mapping[str, Any], file: str) -> ExpertsConfig:
    chosen = "top_k_experts" if text.get("top_k_experts") is not None else "num_experts_per_tok"
    experts = "num_experts" if text.get("num_experts") is not None else "num_local_experts"
    dense = read_list(text, "mlp_only_layers", file) or []
    layers = tuple(layer for layer in dense if type(layer) is int and layer >= 0)
    if len(layers) != len(dense):
        raise CheckpointRejected("is not a list of numbers of layers", file=file, key="mlp_only_layers")
    return ExpertsConfig(
        is_enabled=read_bool(text, "enable_moe_block", file),
        num_experts=_count(text, experts, file),
        num_chosen=_count(text, chosen, file),
        intermediate_size=_count(text, "moe_intermediate_size", file),
        shared_size=_count(text, "shared_expert_intermediate_size", file),
        sparse_step=read_int(text, "decoder_sparse_step", file, default=1),
        dense_layers=layers,
        is_normalized=read_bool(text, "norm_topk_prob", file),
    )


def _linear_attention(text: Mapping[str, Any], file: str) -> LinearAttentionConfig:
    return LinearAttentionConfig(
        num_value_heads=_count(text, "linear_num_value_heads", file),
        num_key_heads=_count(text, "linear_num_key_heads", file),
        key_head_dim=_count(text, "linear_key_head_dim", file),
        value_head_dim=_count(text, "linear_value_head_dim", file),
        conv_kernel_size=_count(text, "linear_conv_kernel_dim", file),
        full_attention_interval=_count(text, "full_attention_interval", file),
        has_output_gate=read_bool(text, "attn_output_gate", file),
    )


def _count(text: Mapping[str, Any], key: str, file: str) -> int:
    return read_int(text, key, file, default=0, minimum=0)
