"""How a config.json departs from the plain layout, by `model_type`.

A dialect says how the file is to be read, not whether this build runs the model (`models.checkpoint.architectures`
does). Four ways to state rotary positions:

* `MAP`: `rope_parameters` holds an object for each kind of attention; where it is absent nothing is stated.
* `THETA`: the same, and where there is no such object `rope_theta` and `rope_scaling`, or the scalars of a flat
  `rope_parameters` (transformers 5), speak for full attention.
* `FLAT`: one `rope_parameters` without kinds, for full attention.
* `LOCAL`: as `THETA`, and `rope_local_base_freq` speaks for sliding attention (Gemma 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from models.checkpoint.errors import CheckpointRejected

_MAX_LAYERS = 10_000
FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


class RopeLayout(Enum):
    """Where a config states its rotary positions; the module says what each means."""

    MAP = "map"
    THETA = "theta"
    FLAT = "flat"
    LOCAL = "local"


def _no_defaults(_text: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


def _accept(_text: Mapping[str, Any], _file: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to read a config.

    Attributes:
        rope: where rotary positions stand.
        defaults: what the architecture sets where the file is silent, made of the keys that it does set.
        is_full_by_default: whether without `layer_types` every layer sees all tokens before it.
        container: the converted container whose own reader states sizes and stop tokens; None for plain files.
        check: refuses values that nobody has verified.
    """

    rope: RopeLayout = RopeLayout.MAP
    defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _no_defaults
    is_full_by_default: bool = False
    container: str | None = None
    check: Callable[[Mapping[str, Any], str], None] = _accept


def plain_name(model_type: str) -> str:
    """Return an architecture's name; the wrapper around a text model stands for the model within it."""
    return _WRAPPERS.get(model_type, model_type)


def model_type_of(architectures: Iterable[object]) -> str | None:
    """Return the `model_type` of the first class that is known, for a config that names classes alone."""
    return next((_CLASSES[name] for name in architectures if isinstance(name, str) and name in _CLASSES), None)


def dialect_for(model_type: str) -> Dialect:
    """Return how to read the config of an architecture; one that is not listed is read in the plain way."""
    if model_type.startswith("qwen3_5"):
        return _QWEN3_5
    return _DIALECTS.get(model_type, _PLAIN)


def _diffusion_gemma(_text: Mapping[str, Any]) -> Mapping[str, Any]:
    """DiffusionGemma's files state token ids and the canvas alone. Source: `TextConfig` of its mlx-vlm model."""
    num_layers = 30
    return {
        "hidden_size": 2816,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "intermediate_size": 2112,
        "moe_intermediate_size": 704,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "vocab_size": 262_144,
        "max_position_embeddings": 262_144,
        "sliding_window": 1024,
        "layer_types": [*_repeated(_pattern_of(5), num_layers)[:-1], FULL],  # the last one sees everything in any case
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "rope_parameters": _gemma_rope(),
    }


def _gemma_rope() -> Mapping[str, Any]:
    return {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }


def _gemma3(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Source: `Gemma3TextConfig` of transformers 5."""
    return {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "intermediate_size": 9216,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
        **_layer_pattern({"num_hidden_layers": 26, **text}, "sliding_window_pattern", 6),
    }


def _gemma4(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Source: `Gemma4TextConfig` of transformers 5."""
    return {
        "hidden_size": 2304,
        "num_hidden_layers": 30,
        "intermediate_size": 9216,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "rms_norm_eps": 1e-6,
        "vocab_size": 262_144,
        "max_position_embeddings": 131_072,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "rope_parameters": _gemma_rope(),
        "tie_word_embeddings": True,
        **_layer_pattern({"num_hidden_layers": 30, **text}, "sliding_window_pattern", 6),
    }


def _windowed(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where there is a window it is every layer's. Source: `MistralConfig` and `Phi3Config` of transformers 5."""
    num_layers = text.get("num_hidden_layers")
    if text.get("sliding_window") is None or type(num_layers) is not int or not 0 < num_layers <= _MAX_LAYERS:
        return {}
    return {"layer_types": [SLIDING] * num_layers}


def _qwen(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """A window counts where `use_sliding_window` says so, from layer `max_window_layers` on.

    Source: `Qwen2Config`, `Qwen3Config` and `SmolLM3Config` of transformers 5.
    """
    num_layers, num_full = text.get("num_hidden_layers"), text.get("max_window_layers", 28)
    is_used = text.get("use_sliding_window") is True and text.get("sliding_window") is not None
    if not is_used or type(num_layers) is not int or type(num_full) is not int:
        return {}
    if not (0 < num_layers <= _MAX_LAYERS and num_full >= 0):
        return {}
    return {"layer_types": [SLIDING if index >= num_full else FULL for index in range(num_layers)]}


def _qwen3_moe(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where `use_sliding_window` says so the window is every layer's. Source: `Qwen3MoeConfig` of transformers 5."""
    is_used = text.get("use_sliding_window") is True
    # Of experts the same defaults stand in the config's class, but for a checkpoint that says nothing.
    return {**(_windowed(text) if is_used else {}), "norm_topk_prob": False, "decoder_sparse_step": 1}


def _qwen3_5(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Shares of experts sum to 1, and a mixture states no dense width.

    Source: `Qwen3_5MoeTextConfig` of transformers 5, `TextModelArgs` of mlx-lm 0.32.2.
    """
    inner = text.get("shared_expert_intermediate_size")
    if text.get("num_experts") is None or type(inner) is not int:
        return {}
    return {"norm_topk_prob": True, "intermediate_size": inner}


def _smollm3(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """One layer in four has no positions. Source: `SmolLM3Config` of transformers 5."""
    num_layers, period = text.get("num_hidden_layers"), text.get("no_rope_layer_interval")
    period = 4 if period is None else period
    found = dict(_qwen(text))
    if type(num_layers) is int and 0 < num_layers <= _MAX_LAYERS and type(period) is int and period > 0:
        found["no_rope_layers"] = [int((index + 1) % period != 0) for index in range(num_layers)]
    return found


def _layer_pattern(text: Mapping[str, Any], key: str, default: int) -> Mapping[str, Any]:
    """Make `layer_types` of the number of layers after which one sees everything, where both are whole numbers."""
    period, num_layers = text.get(key), text.get("num_hidden_layers")
    period = default if period is None else period
    if (
        type(period) is not int
        or type(num_layers) is not int
        or not (0 < period <= _MAX_LAYERS and num_layers <= _MAX_LAYERS)
    ):
        return {}
    return {"layer_types": _repeated(_pattern_of(period - 1), num_layers)}


def _repeated(pattern: tuple[str, ...], num_layers: int) -> list[str]:
    """Return a word for each layer, the pattern over and over."""
    return [pattern[index % len(pattern)] for index in range(num_layers)]


def _pattern_of(num_sliding: int) -> tuple[str, ...]:
    """Return so many sliding layers and one that sees everything."""
    return (SLIDING,) * num_sliding + (FULL,)


def _check_output_gate(text: Mapping[str, Any], file: str) -> None:
    """Refuse a gate that may mean another function than the sigmoid that every implementation computes."""
    gate = text.get("output_gate_type")
    if gate not in (None, "swish"):
        problem = f"is {gate!r}; only swish is verified to mean the sigmoid gate that is computed"
        raise CheckpointRejected(problem, file=file, key="output_gate_type")


_WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
    "diffusion_gemma_text": "diffusion_gemma",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
}
# The classes of transformers that write checkpoints of what is built.
_CLASSES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
    "Phi3ForCausalLM": "phi3",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForCausalLM": "gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4",
}
_PLAIN = Dialect()
_THETA = Dialect(RopeLayout.THETA, is_full_by_default=True)
_QWEN3_5 = Dialect(RopeLayout.FLAT, defaults=_qwen3_5, check=_check_output_gate)
_DIALECTS: Mapping[str, Dialect] = {
    "diffusion_gemma": Dialect(RopeLayout.MAP, defaults=_diffusion_gemma),
    "glm_moe_dsa": Dialect(RopeLayout.MAP, container="colibri"),
    "llama": _THETA,
    "qwen3": Dialect(RopeLayout.THETA, defaults=_qwen),
    "qwen3_moe": Dialect(RopeLayout.THETA, defaults=_qwen3_moe, is_full_by_default=True),
    "mistral": Dialect(RopeLayout.THETA, defaults=_windowed, is_full_by_default=True),
    "qwen2": Dialect(RopeLayout.THETA, defaults=_qwen, is_full_by_default=True),
    "smollm3": Dialect(RopeLayout.THETA, defaults=_smollm3, is_full_by_default=True),
    "phi3": Dialect(RopeLayout.THETA, defaults=_windowed, is_full_by_default=True),
    "gemma3_text": Dialect(RopeLayout.LOCAL, defaults=_gemma3),
    "gemma4_text": Dialect(RopeLayout.MAP, defaults=_gemma4),
}
