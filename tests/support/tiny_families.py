"""Writes tiny random checkpoints of every dense family: a folder like one from Hugging Face, in MLX's layout.

Weights follow a fixed seed and are stored in float32, so that every reader computes with the same numbers.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from tests.support.tiny_models import CONFIG, END_TOKEN_ID, packed, write_tensors, write_tokenizer

Shapes = Iterator[tuple[str, tuple[int, ...]]]
# How public checkpoints spell `model.layers.0.x` and `lm_head.x`.
STYLES: Mapping[str, Callable[[str], str]] = {
    "plain": lambda name: name,
    "bare": lambda name: name.removeprefix("model."),
    "language_model first": lambda name: f"language_model.{name}",
    "language_model second": lambda name: name.replace("model.", "model.language_model.", 1),
    "language_model alone": lambda name: f"language_model.{name.removeprefix('model.')}",
}


@dataclass(frozen=True)
class Tiny:
    """One tiny checkpoint.

    Attributes:
        model_type: its architecture.
        config: keys that differ from the family's.
        quantization: MLX's block for config.json.
        wrapper: keys around a nested `text_config`; None: the config is flat.
        style: how tensors are named, one of `STYLES`.
        key_style: how the keys of single layers in the quantization are; None: as tensors.
        extra: tensors of parts that a text model does not read, by name.
        is_published: whether Qwen 3.5 is as its makers publish it: norms less one, the taps of convolutions last.
        layout: how routed experts are stored, see `models.checkpoint.expert_tensors`; packed ones are stacked.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] | None = None
    wrapper: Mapping[str, Any] | None = None
    style: str = "plain"
    key_style: str | None = None
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_published: bool = False
    layout: Literal["stacked", "fused", "each"] = "stacked"


def family_config(tiny: Tiny) -> dict[str, Any]:
    """Return the flat config of a tiny checkpoint."""
    common = {**CONFIG, "model_type": tiny.model_type, "pad_token_id": 0}
    if tiny.model_type in {"gemma3_text", "gemma4_text"}:
        common |= {"head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 24}
        del common["hidden_act"], common["tie_word_embeddings"], common["rope_theta"]
    return {**common, **_FAMILIES[tiny.model_type], **tiny.config}


def write_family(folder: Path, tiny: Tiny, seed: int = 0) -> Path:
    """Write a checkpoint and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = family_config(tiny)
    full: dict[str, Any] = dict(config) if tiny.wrapper is None else {**tiny.wrapper, "text_config": config}
    if tiny.quantization is not None:
        style = STYLES[tiny.key_style or tiny.style]
        spelled = {key if key in _PLAIN_KEYS else style(key): value for key, value in tiny.quantization.items()}
        full["quantization"] = full["quantization_config"] = spelled
    mx.random.seed(seed)
    tensors: dict[str, mx.array] = {}
    for name, shape in [*tensor_shapes(config), *tiny.extra.items()]:
        array = _random(name, shape, config)
        array = _published(name, array) if tiny.is_published else array
        stored = packed(name, array, tiny.quantization if name not in tiny.extra else None)
        style = STYLES["plain" if name in tiny.extra else tiny.style]
        tensors |= {style(part): array for part, array in stored.items()}
    tensors = _LAYOUTS[tiny.layout](tensors)
    write_tensors(folder, tensors)
    (folder / "config.json").write_text(json.dumps(full, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END_TOKEN_ID}))
    write_tokenizer(folder)
    return folder


def fused(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return a checkpoint's tensors with experts as transformers 5 stores them."""
    found = {name: array for name, array in tensors.items() if not _is_stack(name)}
    for name in tensors:
        if _is_stack(name) and name.endswith("gate_proj.weight"):
            outer, module = _unstacked(name), name.removesuffix("gate_proj.weight")
            both = [tensors[f"{module}{kind}_proj.weight"] for kind in ("gate", "up")]
            found[f"{outer}.gate_up_proj"] = mx.concatenate(both, axis=1)
            found[f"{outer}.down_proj"] = tensors[f"{module}down_proj.weight"]
    return found


def each(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return a checkpoint's tensors with a tensor for each expert."""
    found = {name: array for name, array in tensors.items() if not _is_stack(name)}
    for name, array in tensors.items():
        if _is_stack(name):
            kind = name.split(".")[-2]
            found |= {f"{_unstacked(name)}.{expert}.{kind}.weight": array[expert] for expert in range(array.shape[0])}
    return found


def _is_stack(name: str) -> bool:
    return "switch_" in name


def _unstacked(name: str) -> str:
    """Return the module of experts that are not stacks, by the name of one that is."""
    outer = name.rpartition(".switch_")[0]
    return outer if outer.endswith(".experts") else f"{outer}.experts"


def tensor_shapes(config: Mapping[str, Any]) -> Shapes:
    """Yield the name and the shape of every tensor of a text model."""
    width, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, width)
    for index in range(config["num_hidden_layers"]):
        for name, shape in _layer_shapes(config, index):
            yield f"model.layers.{index}.{name}", shape
    yield "model.norm.weight", (width,)
    if config.get("tie_word_embeddings") is False:
        yield "lm_head.weight", (vocab, width)
    inner = config.get("hidden_size_per_layer_input")
    if config["model_type"] == "gemma4_text" and inner:
        together = config["num_hidden_layers"] * inner
        yield "model.embed_tokens_per_layer.weight", (config["vocab_size_per_layer_input"], together)
        yield "model.per_layer_model_projection.weight", (together, width)
        yield "model.per_layer_projection_norm.weight", (inner,)


def _layer_shapes(config: Mapping[str, Any], index: int) -> Shapes:
    kind, width = config["model_type"], config["hidden_size"]
    if is_linear_layer(config, index):
        yield from _linear_attention_shapes(config, index)
    else:
        yield from _phi3_shapes(config) if kind == "phi3" else _plain_shapes(config, index)
    yield "input_layernorm.weight", (width,)
    yield "post_attention_layernorm.weight", (width,)
    if kind in {"gemma3_text", "gemma4_text"}:
        yield "pre_feedforward_layernorm.weight", (width,)
        yield "post_feedforward_layernorm.weight", (width,)
    if config.get("enable_moe_block"):
        yield from _beside_shapes(config)
    if kind == "gemma4_text":
        yield "layer_scalar", (1,)
        inner = config.get("hidden_size_per_layer_input")
        if inner:
            yield "per_layer_input_gate.weight", (inner, width)
            yield "per_layer_projection.weight", (width, inner)
            yield "post_per_layer_input_norm.weight", (width,)


def is_linear_layer(config: Mapping[str, Any], index: int) -> bool:
    """Tell whether a layer is of gated linear attention."""
    interval = config.get("full_attention_interval")
    return interval is not None and (index + 1) % interval != 0


def _linear_attention_shapes(config: Mapping[str, Any], index: int) -> Shapes:
    width, heads = config["hidden_size"], config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    yield "linear_attn.in_proj_qkv.weight", (channels, width)
    yield "linear_attn.in_proj_z.weight", (values, width)
    yield "linear_attn.in_proj_b.weight", (heads, width)
    yield "linear_attn.in_proj_a.weight", (heads, width)
    yield "linear_attn.conv1d.weight", (channels, config["linear_conv_kernel_dim"], 1)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield "linear_attn.out_proj.weight", (width, values)
    yield from _feed_forward_shapes(config, index, config["intermediate_size"])


def _phi3_shapes(config: Mapping[str, Any]) -> Shapes:
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = width // heads
    yield "self_attn.qkv_proj.weight", (head_dim * (heads + 2 * config["num_key_value_heads"]), width)
    yield "self_attn.o_proj.weight", (width, heads * head_dim)
    yield "mlp.gate_up_proj.weight", (2 * inner, width)
    yield "mlp.down_proj.weight", (width, inner)


def _plain_shapes(config: Mapping[str, Any], index: int) -> Shapes:
    kind, width, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    head_dim, kv_heads, inner = _geometry(config, index)
    has_keys, has_values = _own_keys_and_values(config, index)
    queries, keys = heads * head_dim, kv_heads * head_dim
    gates = queries if kind.startswith("qwen3_5") else 0
    projections = {"q_proj": (queries + gates, width), "o_proj": (width, queries)}
    projections |= {"k_proj": (keys, width)} if has_keys else {}
    projections |= {"v_proj": (keys, width)} if has_values else {}
    for name, shape in projections.items():
        yield f"self_attn.{name}.weight", shape
        if config.get("attention_bias") or (kind == "qwen2" and name != "o_proj"):
            yield f"self_attn.{name}.bias", shape[:1]
    if kind.startswith("qwen3") or kind in {"gemma3_text", "gemma4_text"}:
        yield "self_attn.q_norm.weight", (head_dim,)
        if has_keys:
            yield "self_attn.k_norm.weight", (head_dim,)
    yield from _feed_forward_shapes(config, index, inner)


def _feed_forward_shapes(config: Mapping[str, Any], index: int, inner: int) -> Shapes:
    kind, width = config["model_type"], config["hidden_size"]
    prefix = "mlp"
    if (
        kind.startswith(("qwen3_moe", "qwen3_5_moe"))
        and index not in config["mlp_only_layers"]
        and (index + 1) % config["decoder_sparse_step"] == 0
    ):
        yield "mlp.gate.weight", (config["num_experts"], width)
        yield from _stack_shapes(config, "mlp.switch_mlp")
        inner = config.get("shared_expert_intermediate_size", 0)
        if not inner:
            return
        yield "mlp.shared_expert_gate.weight", (1, width)
        prefix = "mlp.shared_expert"
    yield f"{prefix}.gate_proj.weight", (inner, width)
    yield f"{prefix}.up_proj.weight", (inner, width)
    yield f"{prefix}.down_proj.weight", (width, inner)


def _beside_shapes(config: Mapping[str, Any]) -> Shapes:
    width, count = config["hidden_size"], config["num_experts"]
    yield "router.proj.weight", (count, width)
    yield "router.scale", (width,)
    yield "router.per_expert_scale", (count,)
    yield from _stack_shapes(config, "experts.switch_glu")
    for norm in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
        yield f"{norm}.weight", (width,)


def _stack_shapes(config: Mapping[str, Any], prefix: str) -> Shapes:
    count, inner, width = config["num_experts"], config["moe_intermediate_size"], config["hidden_size"]
    yield f"{prefix}.gate_proj.weight", (count, inner, width)
    yield f"{prefix}.up_proj.weight", (count, inner, width)
    yield f"{prefix}.down_proj.weight", (count, width, inner)


def _geometry(config: Mapping[str, Any], index: int) -> tuple[int, int, int]:
    """Return the width of a head, the heads of keys, and the width of the feed-forward part."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kv_heads, inner = config["num_key_value_heads"], config["intermediate_size"]
    if config["model_type"] != "gemma4_text":
        return head_dim, kv_heads, inner
    is_shared = index >= config["num_hidden_layers"] - config["num_kv_shared_layers"]
    if config["layer_types"][index] == "full_attention":
        head_dim = config["global_head_dim"]
        if config["attention_k_eq_v"] and config.get("num_global_key_value_heads"):
            kv_heads = config["num_global_key_value_heads"]
    return head_dim, kv_heads, inner * (2 if config["use_double_wide_mlp"] and is_shared else 1)


def _own_keys_and_values(config: Mapping[str, Any], index: int) -> tuple[bool, bool]:
    if config["model_type"] != "gemma4_text":
        return True, True
    # Published files of e2b and e4b hold the projections of shared layers too; here they are left out.
    has_keys = index < config["num_hidden_layers"] - config["num_kv_shared_layers"]
    is_full = config["layer_types"][index] == "full_attention"
    return has_keys, has_keys and not (config["attention_k_eq_v"] and is_full)


def _random(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> mx.array:
    if "linear_attn" in name and not name.endswith(("proj.weight", "norm.weight")):
        drawn = mx.random.normal(shape)
        return drawn * 0.5 if name.endswith("conv1d.weight") else drawn
    if name.endswith(("layer_scalar", "scale")):
        return 0.9 + 0.1 * mx.random.normal(shape)
    if "norm" in name:
        middle = 0.0 if config["model_type"] == "gemma3_text" else 1.0
        return middle + 0.1 * mx.random.normal(shape)
    if name.endswith(".bias"):
        return 0.1 * mx.random.normal(shape)
    return mx.random.normal(shape) * (1.0 if "embed" in name else shape[-1] ** -0.5)


def _published(name: str, array: mx.array) -> mx.array:
    if name.endswith("conv1d.weight"):
        return mx.moveaxis(array, 1, 2)  # [C, K, 1] -> [C, 1, K]
    return array - 1.0 if name.endswith("norm.weight") and "linear_attn" not in name else array


_LAYOUTS: Mapping[str, Callable[[Mapping[str, mx.array]], dict[str, mx.array]]] = {
    "stacked": dict,
    "fused": fused,
    "each": each,
}
_PLAIN_KEYS = frozenset({"bits", "group_size", "mode"})
_GEMMA4_ROPE = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
}
_HYBRID: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "full_attention_interval": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "mistral": {},
    "qwen2": {"rope_theta": 1_000_000.0, "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1},
    "qwen3": {"head_dim": 32, "rope_theta": 1_000_000.0},
    "qwen3_5": _HYBRID,
    "qwen3_5_moe": {
        **_HYBRID,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_moe": {
        "head_dim": 32,
        "rope_theta": 1_000_000.0,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4},
    "phi3": {"rope_scaling": None, "sliding_window": None},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 20,
        "sliding_window_pattern": 3,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rms_norm_eps": 1e-6,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "global_head_dim": 64,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": CONFIG["vocab_size"],
        "use_double_wide_mlp": False,
        "rope_parameters": _GEMMA4_ROPE,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
    },
}
