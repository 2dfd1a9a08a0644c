"""Every kind of checkpoint that the dense families cover, as one table."""

from typing import Any

from tests.support.tiny_families import Tiny

Q4: dict[str, Any] = {"group_size": 64, "bits": 4}
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
FAMILIES: dict[str, Tiny] = {
    **PLAIN,
    "qwen2 rope linear": Tiny("qwen2", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "qwen3 rope llama3": Tiny("qwen3", {"rope_scaling": LLAMA3}),
    "qwen3 only rope_parameters": Tiny(
        "qwen3", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    ),
    "smollm3 layers listed": Tiny("smollm3", {"no_rope_layers": [0, 1, 1, 0]}),
    "smollm3 biases": Tiny("smollm3", {"attention_bias": True}),
    "phi3 turned partly": Tiny("phi3", {"partial_rotary_factor": 0.75}),
}
