"""Every kind of checkpoint that Llama covers, as options of `write_llama`."""

from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "long_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.5, 7.0, 8.0],
    "short_factor": [1.0] * 8,
}
Q4: dict[str, Any] = {"group_size": 32, "bits": 4}
Q8: dict[str, Any] = {"group_size": 64, "bits": 8}
MIXED: dict[str, Any] = {
    "group_size": 32,
    "bits": 4,
    "model.layers.0.mlp.down_proj": False,
    "model.layers.1.self_attn.v_proj": {"group_size": 64, "bits": 8},
    "model.embed_tokens": {"group_size": 32, "bits": 6},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"config": {"tie_word_embeddings": True}},
    "every head its own keys": {"config": {"num_key_value_heads": 4}},
    "one key head for all": {"config": {"num_key_value_heads": 1}},
    "head_dim given": {"config": {"head_dim": 32}},
    "biases": {"config": {"attention_bias": True, "mlp_bias": True}},
    "rope linear": {"config": {"rope_scaling": {"type": "linear", "factor": 4.0}}},
    "rope llama3": {"config": {"rope_scaling": LLAMA3, "rope_theta": 500_000.0}},
    "rope dynamic": {"config": {"rope_scaling": {"type": "dynamic", "factor": 1.7}}},
    "rope yarn": {"config": {"rope_scaling": YARN}},
    "rope yarn of neighbours": {"config": {"rope_scaling": {**YARN, "beta_fast": 8}, "rope_traditional": True}},
    "rope longrope": {"config": {"rope_scaling": LONG}},
    "rope of neighbours": {"config": {"rope_traditional": True}},
    "4-bit": {"quantization": Q4},
    "8-bit tied": {"quantization": Q8, "config": {"tie_word_embeddings": True}},
    "4-bit biases": {"quantization": Q4, "config": {"attention_bias": True, "mlp_bias": True}},
    "mixed": {"quantization": MIXED},
    "mixed tied": {"quantization": MIXED, "config": {"tie_word_embeddings": True}},
    "shards": {"num_shards": 3},
}
# A window over one layer, shorter than most prompts: another order of sums than mlx-lm's, which turns its keys round.
WINDOWED: dict[str, dict[str, Any]] = {
    "window": {"config": {"sliding_window": 24, "layer_types": ["full_attention", "sliding_attention"]}},
    "4-bit window": {
        "quantization": Q4,
        "config": {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
    },
}
