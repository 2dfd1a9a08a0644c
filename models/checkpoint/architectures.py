"""Which architectures this build runs, and which of their options.

A config may be right and still ask for a function that is not computed here: that is found from the headers, before
any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from models.checkpoint.dialects import FULL, LINEAR, SLIDING
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.rope_parameters import LONG_KINDS, RopeParameters
from models.checkpoint.text_config import ExpertsConfig, TextConfig
from models.checkpoint.values import read_bool, read_object, read_word

_SILU = ("silu", "swish")
_GELU = ("gelu_pytorch_tanh",)
_STRETCHED = ("default", "linear", "llama3")
# Those of `initialize_rope` in mlx-lm 0.32.2 that a config of these families may ask for.
_ANY = (*_STRETCHED, "dynamic", "yarn", "longrope")


class ExpertsRule(Enum):
    """Where the layers of an architecture have routed experts."""

    NONE = "nowhere"
    BY_STEP = "where `ExpertsConfig.has_experts` says so"
    IF_ENABLED = "everywhere beside the feed-forward part, or nowhere"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is computed of an architecture.

    Attributes:
        activations: of the feed-forward part; the first is meant where a config says nothing.
        rope_kinds: kinds of rotary positions.
        can_turn_partly: whether positions may concern a part of a head.
        needs_layer_types: whether a window is refused where no `layer_types` say where it is.
        is_hybrid: whether some of its layers are of gated linear attention.
        experts: where layers have routed experts.
    """

    activations: tuple[str, ...] = _SILU
    rope_kinds: tuple[str, ...] = _ANY
    can_turn_partly: bool = False
    needs_layer_types: bool = False
    is_hybrid: bool = False
    experts: ExpertsRule = ExpertsRule.NONE


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(needs_layer_types=True),
    "mistral": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3_moe": Architecture(experts=ExpertsRule.BY_STEP),
    "smollm3": Architecture(),
    "phi3": Architecture(rope_kinds=("default", "linear", *LONG_KINDS), can_turn_partly=True),
    "gemma3_text": Architecture(_GELU, _STRETCHED),
    "gemma4_text": Architecture(
        _GELU, ("default", "linear", "proportional"), can_turn_partly=True, experts=ExpertsRule.IF_ENABLED
    ),
    "qwen3_5": Architecture(rope_kinds=("default",), can_turn_partly=True, is_hybrid=True),
    "qwen3_5_moe": Architecture(
        rope_kinds=("default",), can_turn_partly=True, is_hybrid=True, experts=ExpertsRule.BY_STEP
    ),
}


def check_architecture(text: TextConfig, stated: Mapping[str, Any], file: str) -> None:
    """Refuse a text model that this build does not run.

    Args:
        text: what the config says.
        stated: its keys as they stand in the file, flat.
        file: base name of the file, for errors.

    Raises:
        CheckpointRejected: naming the file and the key.
    """
    architecture = architecture_of(text.model_type, file)
    _check_heads(text, file)
    _check_activation(architecture, text, stated, file)
    _check_windows(architecture, text, stated, file)
    _check_rope(architecture, text, file)
    _check_experts(architecture, text.experts, file)
    _check_options(text, stated, file)
    if text.model_type == "gemma4_text":
        _check_sharing(text, file)
    if architecture.is_hybrid:
        if architecture.experts is ExpertsRule.BY_STEP and not text.experts.shared_size:
            raise CheckpointRejected("is missing", file=file, key="shared_expert_intermediate_size")
        _check_linear_attention(text, stated, file)
        _check_flat_rope(stated, file)


def architecture_of(model_type: str, file: str) -> Architecture:
    """Return what is computed of an architecture; raises `CheckpointRejected` by name where it is not built."""
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        problem = f"the architecture {model_type} is not one of {', '.join(ARCHITECTURES)}"
        problem += "; allow_mlx_lm lets mlx-lm run others"
        raise CheckpointRejected(problem, file=file, key="model_type")
    return architecture


def _check_heads(text: TextConfig, file: str) -> None:
    for key, heads in (
        ("num_key_value_heads", text.num_key_value_heads),
        ("num_global_key_value_heads", text.num_global_key_value_heads),
    ):
        if text.num_attention_heads % heads:
            raise CheckpointRejected("does not divide num_attention_heads", file=file, key=key)
    for key, width in (("head_dim", text.head_dim), ("global_head_dim", text.global_head_dim)):
        if width % 2:
            raise CheckpointRejected("is odd, which rotary positions do not allow", file=file, key=key)


def _check_activation(architecture: Architecture, text: TextConfig, stated: Mapping[str, Any], file: str) -> None:
    key = "hidden_activation" if stated.get("hidden_activation") is not None else "hidden_act"
    if stated.get(key) is not None and text.hidden_activation not in architecture.activations:
        problem = f"is not {architecture.activations[0]}, the only one of this architecture"
        raise CheckpointRejected(problem, file=file, key=key)


def _check_windows(architecture: Architecture, text: TextConfig, stated: Mapping[str, Any], file: str) -> None:
    if architecture.needs_layer_types and text.sliding_window and stated.get("layer_types") is None:
        raise CheckpointRejected("is set, and no layer_types say where", file=file, key="sliding_window")
    kinds = (FULL, LINEAR if architecture.is_hybrid else SLIDING)
    if set(text.layer_types) - set(kinds):
        problem = f"has a layer that is neither {kinds[0]} nor {kinds[1]}"
        raise CheckpointRejected(problem, file=file, key="layer_types")
    if SLIDING in text.layer_types and not text.sliding_window:
        raise CheckpointRejected("is missing, and layers see a window", file=file, key="sliding_window")


def _check_rope(architecture: Architecture, text: TextConfig, file: str) -> None:
    for parameters in text.rope.values():
        parameters.check_kind(architecture.rope_kinds, file)
        if parameters.kind in LONG_KINDS:
            _check_stretches(parameters, text, file)
    if architecture.can_turn_partly:
        return
    places = [(parameters.partial_rotary_factor, parameters.place) for parameters in text.rope.values()]
    for share, place in places:
        if share != 1:
            key = f"{place}.partial_rotary_factor"
            raise CheckpointRejected("is not 1, the only one of this architecture", file=file, key=key)
    if text.partial_rotary_factor != 1:
        problem = "is not 1, the only one of this architecture"
        raise CheckpointRejected(problem, file=file, key="partial_rotary_factor")


def _check_stretches(parameters: RopeParameters, text: TextConfig, file: str) -> None:
    if len(parameters.long_factor) != int(text.head_dim * text.partial_rotary_factor) // 2:
        key = f"{parameters.place}.long_factor"
        raise CheckpointRejected("has not one factor for each pair of a head", file=file, key=key)
    if parameters.original_max_position_embeddings is None:
        raise CheckpointRejected("is missing", file=file, key="original_max_position_embeddings")


def _check_experts(architecture: Architecture, experts: ExpertsConfig, file: str) -> None:
    if experts.is_enabled and architecture.experts is not ExpertsRule.IF_ENABLED:
        raise CheckpointRejected("means experts, which are not computed", file=file, key="enable_moe_block")
    if not experts.is_enabled and architecture.experts is not ExpertsRule.BY_STEP:
        return
    chosen = "top_k_experts" if experts.is_enabled else "num_experts_per_tok"
    stated = {
        "num_experts": experts.num_experts,
        chosen: experts.num_chosen,
        "moe_intermediate_size": experts.intermediate_size,
    }
    for key, value in stated.items():
        if not value:
            raise CheckpointRejected("is missing", file=file, key=key)
    if experts.num_chosen > experts.num_experts:
        raise CheckpointRejected("is more than num_experts", file=file, key=chosen)


def _check_options(text: TextConfig, stated: Mapping[str, Any], file: str) -> None:
    if text.final_logit_softcapping is not None and text.model_type != "gemma4_text":
        raise CheckpointRejected("bounds logits, which is not computed", file=file, key="final_logit_softcapping")
    if text.attn_logit_softcapping is not None:
        raise CheckpointRejected("bounds scores, which is not computed", file=file, key="attn_logit_softcapping")
    if stated.get("use_bidirectional_attention") in (True, "all"):
        problem = "lets tokens see later ones, which is not computed"
        raise CheckpointRejected(problem, file=file, key="use_bidirectional_attention")
    read_bool(stated, "use_sliding_window", file)


def _check_sharing(text: TextConfig, file: str) -> None:
    """Every layer without keys of its own must find an earlier one of its kind."""
    first = text.num_hidden_layers - text.num_kv_shared_layers
    kinds = text.layer_types
    if len(kinds) != text.num_hidden_layers:
        raise CheckpointRejected("is missing", file=file, key="layer_types")
    if text.num_kv_shared_layers and (first < 1 or set(kinds[first:]) - set(kinds[:first])):
        problem = "leaves a layer without an earlier one of its kind"
        raise CheckpointRejected(problem, file=file, key="num_kv_shared_layers")
    for kind in set(kinds) - set(text.rope):
        raise CheckpointRejected("is missing", file=file, key=f"rope_parameters.{kind}")


def _check_linear_attention(text: TextConfig, stated: Mapping[str, Any], file: str) -> None:
    """Refuse sizes that are left out: implementations disagree on what is meant."""
    config = text.linear_attention
    for key, number in (
        ("linear_num_value_heads", config.num_value_heads),
        ("linear_num_key_heads", config.num_key_heads),
        ("linear_key_head_dim", config.key_head_dim),
        ("linear_value_head_dim", config.value_head_dim),
        ("linear_conv_kernel_dim", config.conv_kernel_size),
    ):
        if not number:
            raise CheckpointRejected("is missing", file=file, key=key)
    if config.num_value_heads % config.num_key_heads:
        raise CheckpointRejected("does not divide linear_num_value_heads", file=file, key="linear_num_key_heads")
    if stated.get("attn_output_gate") is False:
        raise CheckpointRejected("leaves out the gate that is computed", file=file, key="attn_output_gate")
    if all(text.linear_layers):
        key = "layer_types" if text.layer_types else "full_attention_interval"
        raise CheckpointRejected("leaves no layer that sees everything", file=file, key=key)


def _check_flat_rope(stated: Mapping[str, Any], file: str) -> None:
    """Refuse positions that are stretched, which a flat block cannot say, and a share that each reader would guess."""
    block = read_object(stated, "rope_parameters", file) or {}
    for key in ("rope_type", "type"):
        if read_word(block, key, file, default="default") not in ("default", "mrope"):
            problem = "is none of default and mrope, which of text are the same"
            raise CheckpointRejected(problem, file=file, key=f"rope_parameters.{key}")
    if block.get("partial_rotary_factor") is None:
        raise CheckpointRejected("is missing", file=file, key="rope_parameters.partial_rotary_factor")
