"""What a config says, typed: every derived value and every dialect."""

from typing import Any

import pytest

from models.checkpoint.config import parse_config
from models.checkpoint.dialects import FULL, SLIDING, RopeLayout, dialect_for
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.quantization import LayerQuantization
from models.checkpoint.rope_parameters import RopeParameters
from models.checkpoint.text_config import ExpertsConfig, LinearAttentionConfig, read_text_config
from tests.models.checkpoint.configs import config, parsed, read


def test_an_unlisted_architecture_gets_the_plain_defaults() -> None:
    text = read()
    assert (text.head_dim, text.num_key_value_heads) == (16, 4)
    assert (text.global_head_dim, text.num_global_key_value_heads) == (16, 4)
    assert (text.is_key_value, text.tie_word_embeddings, text.rope_traditional) == (False, False, False)
    assert (text.hidden_activation, text.sliding_window, text.layer_types, text.rope) == (
        "gelu_pytorch_tanh",
        0,
        (),
        {},
    )
    assert (text.hidden_size_per_layer_input, text.vocab_size_per_layer_input, text.num_kv_shared_layers) == (0, 100, 0)
    assert (text.experts, text.linear_attention) == (ExpertsConfig(), LinearAttentionConfig())
    assert (text.partial_rotary_factor, text.final_logit_softcapping, text.max_position_embeddings) == (1.0, None, None)
    assert (text.bos_token_id, text.eos_token_ids, text.canvas_length, text.container) == (None, (), None, None)
    assert text.windows == (None, None, None)


def test_a_head_is_the_model_s_width_by_the_heads_rounded_down() -> None:
    assert read(hidden_size=70).head_dim == 17


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"head_dim": 32}, (32, 32, 4, 4)),
        ({"head_dim": 32, "global_head_dim": 64}, (32, 64, 4, 4)),
        ({"num_key_value_heads": 2}, (16, 16, 2, 2)),
        ({"num_key_value_heads": 2, "num_global_key_value_heads": 1, "global_head_dim": 8}, (16, 8, 2, 1)),
    ],
)
def test_layers_that_see_everything_have_a_geometry_of_their_own(
    keys: dict[str, Any], expected: tuple[int, ...]
) -> None:
    text = read(**keys)
    found = (text.head_dim, text.global_head_dim, text.num_key_value_heads, text.num_global_key_value_heads)
    assert found == expected


@pytest.mark.parametrize(
    ("keys", "activation"),
    [
        ({"hidden_activation": "gelu", "hidden_act": "silu"}, "gelu"),
        ({"hidden_act": "silu"}, "silu"),
        ({}, "gelu_pytorch_tanh"),
    ],
)
def test_the_activation_stands_under_two_names(keys: dict[str, Any], activation: str) -> None:
    assert read(**keys).hidden_activation == activation


def test_reads_experts_and_linear_attention() -> None:
    text = read(
        enable_moe_block=True,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=True,
        linear_num_value_heads=8,
        linear_num_key_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        full_attention_interval=4,
        attn_output_gate=True,
    )
    assert text.experts == ExpertsConfig(True, 8, 2, 48, 0, 2, (3,), True)
    assert text.linear_attention == LinearAttentionConfig(8, 4, 16, 32, 4, 4, True)
    assert [text.experts.has_experts(layer) for layer in range(6)] == [False, True, False, False, False, True]


def test_the_number_of_experts_stands_under_two_names() -> None:
    assert read(num_local_experts=4, shared_expert_intermediate_size=16).experts == ExpertsConfig(
        num_experts=4, shared_size=16
    )
    assert read(num_experts=2, num_local_experts=4).experts.num_experts == 2


def test_the_number_of_chosen_experts_stands_under_two_names() -> None:
    assert read(top_k_experts=4, num_experts_per_tok=2).experts.num_chosen == 4


# Dialects, row by row.


def test_diffusion_gemma_brings_its_sizes() -> None:
    text = read_text_config({"model_type": "diffusion_gemma", "canvas_length": 256})
    assert (text.num_hidden_layers, text.hidden_size, text.num_attention_heads) == (30, 2816, 16)
    assert (text.num_key_value_heads, text.num_global_key_value_heads) == (8, 2)
    assert (text.head_dim, text.global_head_dim, text.intermediate_size) == (256, 512, 2112)
    assert text.experts == ExpertsConfig(True, 128, 8, 704)
    assert (text.hidden_activation, text.rms_norm_eps, text.vocab_size) == ("gelu_pytorch_tanh", 1e-6, 262144)
    assert (text.max_position_embeddings, text.sliding_window) == (262144, 1024)
    assert (text.final_logit_softcapping, text.tie_word_embeddings) == (30.0, True)
    assert (text.bos_token_id, text.eos_token_ids, text.canvas_length) == (2, (1,), 256)
    assert text.layer_types == ((SLIDING,) * 5 + (FULL,)) * 5
    assert text.rope == {
        SLIDING: RopeParameters(1e4),
        FULL: RopeParameters(1e6, "proportional", partial_rotary_factor=0.25),
    }


def test_what_a_file_says_goes_before_an_architecture_s_defaults() -> None:
    raw = {"model_type": "diffusion_gemma", "hidden_size": 64, "eos_token_id": [5, 6], "tie_word_embeddings": False}
    text = read_text_config(raw)
    assert (text.hidden_size, text.eos_token_ids, text.tie_word_embeddings) == (64, (5, 6), False)


def test_the_last_layer_of_diffusion_gemma_sees_everything() -> None:
    defaults = dialect_for("diffusion_gemma").defaults({})
    assert (len(defaults["layer_types"]), defaults["layer_types"][-1]) == (30, FULL)


def test_a_colibri_container_states_its_packing_itself() -> None:
    found = parsed("glm_moe_dsa", quantization_config={"quant_method": "fp8"}, rope_theta=1e6)
    assert (found.text.container, found.quantization, found.text.rope) == ("colibri", None, {})


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_text", "qwen3_5_moe"])
def test_qwen3_5_states_one_flat_rotation(model_type: str) -> None:
    block = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "type": "mrope", "mrope_section": [1, 2, 3], "factor": 4}
    text = read(model_type, rope_parameters=block)
    assert text.rope == {FULL: RopeParameters(1e7, partial_rotary_factor=0.25)}
    assert text.partial_rotary_factor == 0.25


@pytest.mark.parametrize(
    ("keys", "theta", "entry_share", "share"),
    [
        ({"rope_theta": 5e5}, 5e5, 1.0, 1.0),
        ({}, 1e4, 1.0, 1.0),
        # One number for all layers falls back to the flat key, and the entry of full attention does not.
        ({"partial_rotary_factor": 0.5}, 1e4, 1.0, 0.5),
        ({"rope_parameters": {"rope_theta": 1e7}, "rope_theta": 5e5}, 1e7, 1.0, 1.0),
    ],
)
def test_qwen3_5_falls_back(keys: dict[str, Any], theta: float, entry_share: float, share: float) -> None:
    text = read("qwen3_5", **keys)
    assert text.rope == {FULL: RopeParameters(theta, partial_rotary_factor=entry_share)}
    assert text.partial_rotary_factor == share


@pytest.mark.parametrize("gate", [None, "swish"])
def test_qwen3_5_may_name_the_gate_that_is_verified(gate: str | None) -> None:
    assert read("qwen3_5", output_gate_type=gate).model_type == "qwen3_5"


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe_text"])
@pytest.mark.parametrize("gate", ["sigmoid", "", 1, ["swish"]])
def test_another_output_gate_is_refused_by_key(model_type: str, gate: object) -> None:
    with pytest.raises(CheckpointRejected) as caught:
        read(model_type, output_gate_type=gate)
    assert (caught.value.file, caught.value.key) == ("config.json", "output_gate_type")
    assert repr(gate) in caught.value.problem


def test_other_architectures_do_not_look_at_the_output_gate() -> None:
    assert read("qwen3", output_gate_type="sigmoid").model_type == "qwen3"


def test_llama_sees_everything_and_may_state_theta_alone() -> None:
    text = read("llama", rope_theta=5e5)
    assert (text.layer_types, text.rope) == ((FULL,) * 3, {FULL: RopeParameters(5e5)})
    assert read("llama").rope == {FULL: RopeParameters(1e4)}


def test_qwen3_may_state_theta_alone_and_names_no_kinds() -> None:
    text = read("qwen3", rope_theta=1e6)
    assert (text.layer_types, text.rope) == ((), {FULL: RopeParameters(1e6)})


@pytest.mark.parametrize("model_type", ["unheard_of", "gemma2"])
def test_any_other_architecture_states_positions_in_a_map_or_not_at_all(model_type: str) -> None:
    assert dialect_for(model_type).rope is RopeLayout.MAP
    assert read(model_type, rope_theta=1e6).rope == {}


@pytest.mark.parametrize("model_type", ["unheard_of", "llama", "qwen3", "gemma3_text"])
def test_scalars_among_the_kinds_of_attention_are_no_kinds(model_type: str) -> None:
    block = {
        FULL: {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 8.0},
        SLIDING: {"rope_theta": 2e4},
        "rope_theta": None,
        "rope_type": "default",
        "factor": 3,
    }
    text = read(model_type, rope_parameters=block)
    assert text.rope == {FULL: RopeParameters(1e6, "proportional", 0.25, 8.0), SLIDING: RopeParameters(2e4)}


def test_only_rope_parameters_may_be_there() -> None:
    flat = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    assert read("llama", rope_parameters=flat).rope == {FULL: RopeParameters(5e5, "linear", factor=2.0)}


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "qwen2", "mistral", "smollm3", "phi3"])
def test_no_rope_scaling_is_the_plain_rotation(model_type: str) -> None:
    raw = {**config(model_type, rope_theta=5e5), "rope_scaling": None, "rope_parameters": None}
    assert read_text_config(raw).rope == {FULL: RopeParameters(5e5)}


def test_gemma3_has_a_base_for_either_kind() -> None:
    text = read("gemma3_text", num_key_value_heads=2, rope_theta=2e6, rope_scaling={"rope_type": "linear", "factor": 8})
    assert text.rope == {FULL: RopeParameters(2e6, "linear", factor=8.0), SLIDING: RopeParameters(1e4)}


def test_gemma3_brings_what_its_wrapper_leaves_out() -> None:
    nested = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}
    text = read_text_config({"model_type": "gemma3", "text_config": {**nested, "sliding_window": 1024}})
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim) == (8, 4, 256)
    assert (text.vocab_size, text.rms_norm_eps, text.query_pre_attn_scalar) == (262_208, 1e-6, 256)
    assert text.layer_types[:7] == (SLIDING,) * 5 + (FULL, SLIDING)
    assert text.windows.count(None) == 5


@pytest.mark.parametrize(("model_type", "num_layers"), [("gemma3_text", 26), ("gemma4_text", 30)])
def test_a_gemma_that_says_nothing_has_its_pattern_all_the_same(model_type: str, num_layers: int) -> None:
    text = read_text_config({"model_type": model_type})
    kinds = [FULL if layer % 6 == 5 else SLIDING for layer in range(num_layers)]
    assert text.layer_types == tuple(kinds)


def test_a_pattern_says_which_layers_see_everything() -> None:
    text = read("gemma3_text", num_hidden_layers=4, num_key_value_heads=2, sliding_window_pattern=2, sliding_window=8)
    assert text.windows == (8, None, 8, None)


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_unified", "gemma4_unified_text", "gemma4_text"])
def test_the_layouts_of_gemma4_are_one_architecture(model_type: str) -> None:
    assert read(model_type, num_key_value_heads=2).model_type == "gemma4_text"


def test_gemma4_brings_its_rotation() -> None:
    assert read("gemma4_text", num_key_value_heads=2).rope == {
        SLIDING: RopeParameters(1e4),
        FULL: RopeParameters(1e6, "proportional", partial_rotary_factor=0.25),
    }


@pytest.mark.parametrize("model_type", ["mistral", "phi3"])
def test_a_window_is_every_layer_s(model_type: str) -> None:
    assert read(model_type, sliding_window=8).windows == (8, 8, 8)
    assert read(model_type).windows == (None,) * 3


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "smollm3"])
def test_a_window_counts_where_it_is_used(model_type: str) -> None:
    keys = {"sliding_window": 8, "max_window_layers": 1}
    assert read(model_type, **keys, use_sliding_window=False).windows == (None,) * 3
    assert read(model_type, **keys, use_sliding_window=True).windows == (None, 8, 8)


@pytest.mark.parametrize(
    ("keys", "rotated"),
    [
        ({}, (True, True, True, False)),
        ({"no_rope_layer_interval": 2}, (True, False, True, False)),
        ({"no_rope_layers": [0, 1, 0, 1]}, (False, True, False, True)),
    ],
)
def test_smollm3_turns_some_layers_alone(keys: dict[str, Any], rotated: tuple[bool, ...]) -> None:
    assert read("smollm3", num_hidden_layers=4, **keys).rotated_layers == rotated


# Wrappers.


def test_takes_the_text_part_and_ties_and_ends_as_its_wrapper_says_where_it_is_silent() -> None:
    raw = {"model_type": "llava", "tie_word_embeddings": True, "bos_token_id": 8, "eos_token_id": 9, "dtype": "float16"}
    found = parse_config({**raw, "text_config": config("llama")})
    assert (found.model_type, found.text.model_type, found.dtype) == ("llava", "llama", "float16")
    assert (found.text.tie_word_embeddings, found.text.bos_token_id, found.text.eos_token_ids) == (True, 8, (9,))


def test_text_and_wrapper_differ_on_who_names_the_end_first() -> None:
    nested = config("llama", eos_token_id=7, tie_word_embeddings=False, bos_token_id=5)
    raw = {"tie_word_embeddings": True, "bos_token_id": 8, "eos_token_id": [9, 10], "text_config": nested}
    found = parse_config({"model_type": "llava", **raw})
    assert (found.eos_token_ids, found.text.eos_token_ids) == ((9, 10), (7,))
    assert (found.text.tie_word_embeddings, found.text.bos_token_id) == (False, 5)
    assert found.keys["eos_token_id"] == [7, 9, 10]


def test_a_null_text_config_is_none() -> None:
    assert read_text_config({**config("llama"), "text_config": None}).hidden_size == 64


def test_says_what_else_a_file_says() -> None:
    found = parsed("llama", architectures=["LlamaForCausalLM"], quantization={"bits": 4, "group_size": 64})
    assert (found.architectures, found.dtype) == (("LlamaForCausalLM",), "bfloat16")
    assert found.quantization is not None
    assert found.quantization.default == LayerQuantization(4, 64)


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("LlamaForCausalLM", "llama"),
        ("MistralForCausalLM", "mistral"),
        ("Qwen2ForCausalLM", "qwen2"),
        ("Qwen3ForCausalLM", "qwen3"),
        ("SmolLM3ForCausalLM", "smollm3"),
        ("Phi3ForCausalLM", "phi3"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Gemma3ForConditionalGeneration", "gemma3_text"),
        ("Gemma4ForCausalLM", "gemma4_text"),
        ("Gemma4ForConditionalGeneration", "gemma4_text"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_class_stands_for_the_architecture_that_nothing_else_names(
    name: str, model_type: str, is_nested: bool
) -> None:
    plain = {key: value for key, value in config(num_key_value_heads=2).items() if key != "model_type"}
    raw = {"text_config": plain} if is_nested else plain
    found = parse_config({**raw, "architectures": ["SomethingElse", name]})
    assert (found.model_type, found.text.model_type, found.keys["model_type"]) == (model_type,) * 3


def test_a_word_goes_before_a_class() -> None:
    assert read("qwen3", architectures=["LlamaForCausalLM"]).model_type == "qwen3"


@pytest.mark.parametrize("names", [[], ["SomethingElse"], [3], None])
def test_classes_that_nobody_knows_name_no_architecture(names: object) -> None:
    with pytest.raises(CheckpointRejected) as caught:
        read_text_config({**config(), "model_type": None, "architectures": names})
    assert (caught.value.key, caught.value.problem) == ("model_type", "is missing")


def test_diffusion_gemma_s_text_part_may_stand_in_a_wrapper() -> None:
    raw = {"model_type": "diffusion_gemma", "canvas_length": 128}
    text = read_text_config({**raw, "text_config": {"model_type": "diffusion_gemma_text", "canvas_length": 64}})
    assert (text.model_type, text.hidden_size, text.canvas_length) == ("diffusion_gemma", 2816, 128)


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ({"partial_rotary_factor": 0.5}, 0.5),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.5}, 0.25),
        ({"rope_parameters": {FULL: {"partial_rotary_factor": 0.25}}}, 1.0),
    ],
)
@pytest.mark.parametrize("model_type", ["unheard_of", "phi3", "qwen3_5"])
def test_the_share_that_is_turned_stands_with_the_positions_or_beside_them(
    model_type: str, keys: dict[str, Any], share: float
) -> None:
    assert read(model_type, **keys).partial_rotary_factor == share


@pytest.mark.parametrize(("keys", "dtype"), [({}, "bfloat16"), ({"dtype": "float16"}, "float16")])
def test_a_dtype_has_a_default(keys: dict[str, Any], dtype: str) -> None:
    assert parsed("llama", **keys).dtype == dtype
