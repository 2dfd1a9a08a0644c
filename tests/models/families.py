"""Every kind of checkpoint that the dense families cover, as one table."""

from typing import Any

from tests.support.tiny_families import Tiny

Q4: dict[str, Any] = {"group_size": 64, "bits": 4}
FLOATS: dict[str, dict[str, Any]] = {
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}
# The feed-forward parts as small floats, the rest in eight bits with biases.
FLOATS_BESIDE_AFFINE: dict[str, Any] = {
    "group_size": 64,
    "bits": 8,
    **{
        f"model.layers.{layer}.mlp.{part}_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        for layer in range(2)
        for part in ("gate", "up", "down")
    },
}
MIXED: dict[str, Any] = {
    "group_size": 32,
    "bits": 4,
    "model.layers.0.mlp.down_proj": False,
    "model.layers.1.self_attn.o_proj": {"group_size": 64, "bits": 8},
    "model.embed_tokens": {"group_size": 32, "bits": 6},
}
TIED = {"tie_word_embeddings": True}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG: dict[str, Any] = {
    "original_max_position_embeddings": 64,
    "rope_scaling": {
        "type": "longrope",
        "long_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.5, 7.0, 8.0],
        "short_factor": [1.0] * 8,
    },
}
PARTLY = {"long_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.5], "short_factor": [1.0] * 6}
PLAIN: dict[str, Tiny] = {
    f"{family} {kind}": Tiny(family, config, quantization)
    for family in ("mistral", "qwen2", "qwen3", "smollm3", "phi3")
    for kind, config, quantization in (
        ("untied", {}, None),
        ("tied", TIED, None),
        ("4-bit", {}, Q4),
        ("mixed tied", TIED, MIXED),
    )
}
DENSE: dict[str, Tiny] = {
    **PLAIN,
    **{f"qwen3 {mode}": Tiny("qwen3", {}, block) for mode, block in FLOATS.items()},
    "qwen2 mxfp4 biases": Tiny("qwen2", TIED, FLOATS["mxfp4"]),
    "mistral mxfp4 beside 8-bit": Tiny("mistral", {}, FLOATS_BESIDE_AFFINE),
    **{f"qwen3 {bits}-bit": Tiny("qwen3", {}, {"group_size": 64, "bits": bits}) for bits in (2, 3, 5, 6, 8)},
    "mistral wrapped": Tiny(
        "mistral",
        wrapper={"model_type": "mistral3", "tie_word_embeddings": False},
        style="language_model first",
        extra={"vision_tower.patch_conv.weight": (4, 4), "multi_modal_projector.linear_1.weight": (4, 4)},
    ),
    "qwen2 rope linear": Tiny("qwen2", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "qwen3 rope llama3": Tiny("qwen3", {"rope_scaling": LLAMA3}),
    "qwen3 rope yarn": Tiny("qwen3", {"rope_scaling": YARN}),
    "qwen2 rope yarn 4-bit": Tiny("qwen2", {"rope_scaling": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.4}}, Q4),
    "smollm3 rope dynamic": Tiny("smollm3", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}),
    "mistral rope longrope": Tiny(
        "mistral", {"rope_scaling": {**LONG["rope_scaling"], "original_max_position_embeddings": 64}}
    ),
    "qwen3 only rope_parameters": Tiny(
        "qwen3", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    ),
    "smollm3 layers listed": Tiny("smollm3", {"no_rope_layers": [0, 1, 1, 0]}),
    "smollm3 biases": Tiny("smollm3", {"attention_bias": True}),
    "phi3 longrope": Tiny("phi3", LONG),
    "phi3 longrope 4-bit turned partly": Tiny(
        "phi3", {**LONG, "partial_rotary_factor": 0.75, "rope_scaling": {**LONG["rope_scaling"], **PARTLY}}, Q4
    ),
    "phi3 turned partly": Tiny("phi3", {"partial_rotary_factor": 0.75}),
}
GEMMA3: dict[str, Tiny] = {
    "gemma3": Tiny("gemma3_text"),
    "gemma3 untied": Tiny("gemma3_text", {"tie_word_embeddings": False}),
    "gemma3 4-bit": Tiny("gemma3_text", quantization=Q4),
    "gemma3 mixed": Tiny("gemma3_text", quantization=MIXED),
    "gemma3 wrapped": Tiny(
        "gemma3_text",
        {"tie_word_embeddings": True},
        MIXED,
        wrapper={"model_type": "gemma3", "vocab_size": 288, "eos_token_id": [1, 106]},
        style="language_model first",
        extra={"vision_tower.encoder.weight": (4, 4), "multi_modal_projector.weight": (4, 4)},
    ),
    "gemma3 rope linear": Tiny("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
}
EDGE = {
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "use_double_wide_mlp": True,
    "num_key_value_heads": 1,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
KEY_VALUE = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
GEMMA4: dict[str, Tiny] = {
    "gemma4": Tiny("gemma4_text"),
    "gemma4 untied": Tiny("gemma4_text", {"tie_word_embeddings": False}),
    "gemma4 unbounded": Tiny("gemma4_text", {"final_logit_softcapping": None}),
    "gemma4 4-bit": Tiny("gemma4_text", quantization=Q4),
    "gemma4 values from keys": Tiny("gemma4_text", KEY_VALUE),
    "gemma4 values from keys 4-bit": Tiny("gemma4_text", KEY_VALUE, Q4),
    "gemma4 edge": Tiny("gemma4_text", EDGE),
    "gemma4 edge 4-bit": Tiny("gemma4_text", EDGE, {"group_size": 32, "bits": 4}),
    "gemma4 edge mixed": Tiny("gemma4_text", EDGE, MIXED),
    "gemma4 unified": Tiny(
        "gemma4_text", wrapper={"model_type": "gemma4_unified", "vocab_size": 288}, style="language_model second"
    ),
    "gemma4 wrapped": Tiny(
        "gemma4_text",
        EDGE,
        wrapper={"model_type": "gemma4", "vocab_size": 288, "eos_token_id": [1, 106]},
        style="language_model second",
        extra={"model.vision_tower.encoder.weight": (4, 4), "model.embed_audio.weight": (4, 4)},
    ),
}
# The part that guesses tokens ahead and the one that sees pictures.
OTHER_PARTS = {"mtp.fc.weight": (64, 128), "mtp.norm.weight": (64,), "model.visual.blocks.0.norm1.weight": (16,)}
GUESSING_EXPERTS = {
    "mtp.layers.0.mlp.experts.gate_up_proj": (8, 128, 64),
    "mtp.layers.0.mlp.experts.down_proj": (8, 64, 64),
}
MIXED_LINEAR: dict[str, Any] = {
    "group_size": 32,
    "bits": 4,
    "model.layers.0.mlp.down_proj": False,
    "model.layers.1.linear_attn.in_proj_z": {"group_size": 64, "bits": 8},
    "model.layers.2.linear_attn.in_proj_qkv": False,
}
SHORT: dict[str, Any] = {
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 2,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 12,
}
HYBRID: dict[str, Tiny] = {
    "qwen3_5": Tiny("qwen3_5"),
    "qwen3_5 4-bit tied": Tiny("qwen3_5", TIED, Q4),
    "qwen3_5 mixed": Tiny("qwen3_5", {}, MIXED_LINEAR),
    "qwen3_5 layers listed": Tiny(
        "qwen3_5", {"layer_types": [*["linear_attention"] * 3, "full_attention"], "attention_bias": True}
    ),
    "qwen3_5 short": Tiny("qwen3_5", SHORT),
    "qwen3_5_moe": Tiny("qwen3_5_moe"),
    "qwen3_5_moe 4-bit": Tiny(
        "qwen3_5_moe",
        TIED,
        {
            **Q4,
            "model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
            "model.layers.0.mlp.shared_expert_gate": {"group_size": 64, "bits": 8},
        },
    ),
    "qwen3_5_moe published": Tiny(
        "qwen3_5_moe",
        wrapper={"model_type": "qwen3_5_moe", "vocab_size": 288, "tie_word_embeddings": False},
        style="language_model second",
        extra={**OTHER_PARTS, **GUESSING_EXPERTS},
        layout="fused",
        is_published=True,
    ),
    "qwen3_5 published": Tiny(
        "qwen3_5",
        wrapper={"model_type": "qwen3_5", "vocab_size": 288, "tie_word_embeddings": False},
        style="language_model second",
        extra=OTHER_PARTS,
        is_published=True,
    ),
}
BESIDE = {**KEY_VALUE, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 64}
ROUTER8 = {f"model.layers.{layer}.router.proj": {"group_size": 64, "bits": 8} for layer in range(4)}
GEMMA4_MOE: dict[str, Tiny] = {
    "gemma4 experts fused": Tiny("gemma4_text", BESIDE, layout="fused"),
    "gemma4 experts 4-bit wrapped": Tiny(
        "gemma4_text",
        BESIDE,
        {**Q4, **ROUTER8},
        wrapper={"model_type": "gemma4", "vocab_size": 288, "eos_token_id": [1, 106]},
        style="language_model first",
    ),
}
SOME_DENSE = {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
QWEN3_MOE: dict[str, Tiny] = {
    "qwen3_moe": Tiny("qwen3_moe"),
    "qwen3_moe each": Tiny("qwen3_moe", layout="each"),
    "qwen3_moe tied": Tiny("qwen3_moe", {**TIED, "norm_topk_prob": False}),
    "qwen3_moe some dense": Tiny("qwen3_moe", {**SOME_DENSE, "norm_topk_prob": False}),
    "qwen3_moe 4-bit": Tiny("qwen3_moe", {}, {**Q4, "model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}}),
    "qwen3_moe mixed": Tiny(
        "qwen3_moe",
        {},
        {
            "group_size": 32,
            "bits": 4,
            "model.layers.0.mlp.gate": False,
            "model.layers.0.mlp.switch_mlp.down_proj": {"group_size": 64, "bits": 8},
            "model.layers.1.mlp.switch_mlp.up_proj": False,
        },
    ),
    "qwen3_moe mxfp4": Tiny("qwen3_moe", {}, FLOATS["mxfp4"]),
}
HYBRID_MOE: dict[str, Tiny] = {name: tiny for name, tiny in HYBRID.items() if tiny.model_type == "qwen3_5_moe"}
FAMILIES: dict[str, Tiny] = {**DENSE, **GEMMA3, **GEMMA4, **GEMMA4_MOE, **QWEN3_MOE, **HYBRID}
