"""What a config may not say is refused by key."""

from typing import Any

import pytest

from models.checkpoint.dialects import FULL, SLIDING
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.text_config import read_text_config
from tests.models.checkpoint.configs import GEMMA4, SIZES, config, read, refused_key

NUMBERS = {"original_max_position_embeddings": 64}


EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 48}


@pytest.mark.parametrize("key", [*SIZES, "model_type"])
@pytest.mark.parametrize("model_type", ["unheard_of", "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3"])
def test_a_missing_key_is_named(model_type: str, key: str) -> None:
    with pytest.raises(CheckpointRejected) as caught:
        read_text_config(config(model_type) | {key: None})
    assert (caught.value.file, caught.value.key, caught.value.problem) == ("config.json", key, "is missing")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_global_key_value_heads": 0}, "num_global_key_value_heads"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"attention_k_eq_v": 1}, "attention_k_eq_v"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": [FULL, 1, FULL]}, "layer_types"),
        ({"mlp_only_layers": ["a"]}, "mlp_only_layers"),
        ({"mlp_only_layers": 3}, "mlp_only_layers"),
        ({"no_rope_layers": [1, 2, 1]}, "no_rope_layers"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": 3}, "rope_parameters"),
        ({"rope_parameters": {FULL: {"rope_theta": "x"}}}, f"rope_parameters.{FULL}.rope_theta"),
        ({"rope_parameters": {FULL: {"factor": -1}}}, f"rope_parameters.{FULL}.factor"),
        ({"rope_parameters": {FULL: {"rope_type": 4}}}, f"rope_parameters.{FULL}.rope_type"),
        ({"rope_parameters": {FULL: {"long_factor": [0]}}}, f"rope_parameters.{FULL}.long_factor"),
        ({"bos_token_id": -2}, "bos_token_id"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
    ],
)
def test_a_value_of_another_kind_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointRejected) as caught:
        read(**changes)
    assert (caught.value.file, caught.value.key) == ("config.json", key)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (config("mamba"), "model_type"),
        (config("llama", num_key_value_heads=3), "num_key_value_heads"),
        (config("llama", hidden_act="gelu"), "hidden_act"),
        (config("llama", sliding_window=8), "sliding_window"),
        (config("qwen3", layer_types=[FULL, "linear_attention", FULL]), "layer_types"),
        (config("qwen3", layer_types=[FULL, SLIDING, FULL]), "sliding_window"),
        (config("qwen2", rope_scaling={"rope_type": "mrope", "factor": 4.0}), "rope_scaling.rope_type"),
        (config("qwen3", rope_parameters={"rope_type": "telechat3-yarn"}), "rope_parameters.rope_type"),
        *(
            (config(model_type, rope_scaling={"rope_type": kind, "factor": 4.0, **NUMBERS}), "rope_scaling.rope_type")
            for model_type in ("phi3", "gemma3_text")
            for kind in ("yarn", "dynamic", "mrope")
        ),
        (config("phi3", rope_scaling={"rope_type": "llama9"}), "rope_scaling.rope_type"),
        (config("phi3", rope_scaling={"type": "longrope", "long_factor": [1.0] * 3}), "rope_scaling.long_factor"),
        (config("phi3", rope_scaling={"type": "su", "long_factor": [1.0] * 8}), "original_max_position_embeddings"),
        (config("gemma3_text", num_key_value_heads=2, final_logit_softcapping=30.0), "final_logit_softcapping"),
        (config("qwen3", partial_rotary_factor=0.5), "partial_rotary_factor"),
        (
            config("mistral", rope_parameters={"rope_theta": 1.0, "partial_rotary_factor": 0.5}),
            "rope_parameters.partial_rotary_factor",
        ),
        (config("qwen2", use_sliding_window="yes"), "use_sliding_window"),
        (config("gemma3_text", num_key_value_heads=2, hidden_activation="silu"), "hidden_activation"),
        (config("gemma3_text", num_key_value_heads=2, attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        (config("gemma3_text", num_key_value_heads=2, use_bidirectional_attention=True), "use_bidirectional_attention"),
        (config("qwen3", **EXPERTS, enable_moe_block=True), "enable_moe_block"),
        (config("qwen3_moe", **EXPERTS, num_experts_per_tok=5), "num_experts_per_tok"),
        (config("qwen3_moe", **EXPERTS), "num_experts_per_tok"),
        (config("qwen3_moe", num_experts_per_tok=2, moe_intermediate_size=48), "num_experts"),
        (config("qwen3_moe", num_experts_per_tok=2, num_local_experts=4), "moe_intermediate_size"),
        (config(**GEMMA4, **EXPERTS, enable_moe_block=True), "top_k_experts"),
        (config(**GEMMA4, **EXPERTS, enable_moe_block=True, top_k_experts=5), "top_k_experts"),
        (config(**GEMMA4, num_kv_shared_layers=3), "num_kv_shared_layers"),
        (config(**GEMMA4, num_kv_shared_layers=1, layer_types=[SLIDING, SLIDING, FULL]), "num_kv_shared_layers"),
        (config(**GEMMA4, global_head_dim=5), "global_head_dim"),
        (config(**GEMMA4, num_global_key_value_heads=3), "num_global_key_value_heads"),
        (config(**GEMMA4, rope_parameters={FULL: {"rope_theta": 1e6}}), f"rope_parameters.{SLIDING}"),
    ],
)
def test_what_is_not_computed_is_refused_by_key(raw: dict[str, Any], key: str) -> None:
    assert refused_key(raw) == key
