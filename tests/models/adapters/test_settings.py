"""Settings of adapters: what the product of a layer's matrices is multiplied by, and kinds that are not run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from models.adapters.errors import AdapterRejected
from models.adapters.names import is_adapter_name
from models.adapters.settings import read_settings

# As PEFT 0.21 writes it.
PEFT: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": {
        "base_model_class": "LlamaForCausalLM",
        "parent_library": "transformers.models.llama.modeling_llama",
    },
    "base_model_name_or_path": "tiny",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "v_proj"],
    "target_parameters": None,
    "task_type": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
Q0 = "model.layers.0.self_attn.q_proj"


def scale_of(tmp_path: Path, keys: dict[str, Any], rank: int = 4, file: str = "adapter_config.json") -> float:
    path = tmp_path / file
    path.write_text(json.dumps(keys))
    return read_settings(path).scale_of(Q0, rank)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"lora_parameters": {"scale": 10.0, "rank": 4}}, 10.0),
        ({"lora_parameters": {"scale": 10}}, 10.0),
        ({"lora_parameters": {}}, 20.0),
        ({"lora_parameters": {"scale": -1.5}}, -1.5),
        ({"lora_parameters": {"scale": 10.0, "rs_lora": True}}, 5.0),
        ({"rs_lora": True, "lora_parameters": {"scale": 10.0, "rs_lora": False}}, 5.0),
        ({"rs_lora": False, "use_rslora": True, "lora_parameters": {"scale": 10.0}}, 10.0),
        ({"r": 4, "lora_alpha": 32}, 8.0),
        ({"r": 16, "lora_alpha": 32}, 2.0),
        ({"r": 4, "lora_alpha": 32, "use_rslora": True}, 16.0),
        ({"r": 4, "lora_alpha": 32, "use_rslora": None}, 8.0),
        ({"r": 4}, 4.0),
        ({"lora_alpha": 4}, 0.5),
        ({}, 2.0),
        ({"r": 8, "lora_alpha": 32, "rank_pattern": {"q_proj": 4}}, 8.0),
        ({"r": 8, "lora_alpha": 32, "rank_pattern": {"v_proj": 4}}, 4.0),
        ({"r": 8, "lora_alpha": 32, "alpha_pattern": {"layers.0.self_attn.q_proj": 8}}, 1.0),
        ({"r": 8, "lora_alpha": 32, "alpha_pattern": {"^" + Q0: 8}, "rank_pattern": {"q_proj": 4}}, 2.0),
        ({"r": 8, "lora_alpha": 32, "alpha_pattern": {"q_proj": 8}, "use_rslora": True}, 4.0),
    ],
)
def test_scales(tmp_path: Path, keys: dict[str, Any], expected: float) -> None:
    assert math.isclose(scale_of(tmp_path, keys), expected)


def test_rank_stabilized_layers_are_divided_by_the_root_of_their_own_rank(tmp_path: Path) -> None:
    keys = {"lora_parameters": {"scale": 6.0, "rank": 9, "rs_lora": True}}
    assert [scale_of(tmp_path, keys, rank, "optiq_lora_config.json") for rank in (1, 4, 9)] == [6.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"use_dora": True}, "use_dora: asks for DoRA"),
        ({"fine_tune_type": "dora"}, "fine_tune_type: asks for a kind of training other than LoRA"),
        ({"fine_tune_type": "full"}, "fine_tune_type"),
        ({"lora_parameters": {"scale": 1.0, "use_dora": True}}, "use_dora: asks for DoRA"),
        ({"peft_type": "IA3"}, "peft_type: asks for a kind of adapter other than LoRA"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
        ({"kasa_config": {"beta": 1}}, "kasa_config: asks for KaSA"),
        ({"monteclora_config": {"buffer_size": 1}}, "monteclora_config"),
        ({"arrow_config": {"top_k": 3}}, "arrow_config"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights"),
        ({"r": 0}, "r: is no whole number from 1 to 65536"),
        ({"r": 4.0}, "r: is no whole number from 1 to 65536"),
        ({"r": True}, "r: is no whole number from 1 to 65536"),
        ({"lora_alpha": "16"}, "lora_alpha: is no finite number"),
        ({"lora_alpha": 0}, "lora_alpha: is no finite number other than 0"),
        ({"lora_alpha": 10**400}, "lora_alpha: is no finite number"),
        ({"lora_parameters": {"scale": math.inf}}, "scale: is no finite number"),
        ({"lora_parameters": {"scale": math.nan}}, "scale: is no finite number"),
        ({"lora_parameters": {"scale": -1e39}}, "scale: is no finite number other than 0 that float32 holds"),
        ({"lora_alpha": 1e-39}, "lora_alpha: is no finite number other than 0 that float32 holds"),
        ({"lora_parameters": {"alpha": 16, "rank": 8}}, "lora_parameters.alpha: is not read here"),
        ({"lora_parameters": [1]}, "lora_parameters: is no object"),
        ({"use_rslora": 1}, "use_rslora: is neither true nor false"),
        ({"target_modules": [1]}, "target_modules: is no list of names"),
        ({"target_modules": {"q_proj": 1}}, "target_modules: is no list of names"),
        ({"rank_pattern": {".*q_proj": 2}}, "rank_pattern: has .*q_proj, a pattern and no name"),
        ({"rank_pattern": {"q_proj": 0}}, "q_proj: is no whole number from 1 to 65536"),
    ],
)
def test_what_is_not_run_is_refused_by_its_name(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(AdapterRejected) as caught:
        scale_of(tmp_path, keys)
    assert str(caught.value).startswith(f"adapter_config.json: {named}")


def test_what_peft_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(PEFT))
    settings = read_settings(path)
    assert (settings.scale_of(Q0, 4), settings.rank_of(Q0), settings.targets) == (2.0, 4, ("q_proj", "v_proj"))


@pytest.mark.parametrize("value", [True, False, "gaussian", "eva", "orthogonal", None])
def test_ways_to_begin_that_leave_the_model_alone_are_taken(tmp_path: Path, value: object) -> None:
    assert scale_of(tmp_path, {"r": 4, "lora_alpha": 4, "init_lora_weights": value, "bias": "none"}) == 1


@pytest.mark.parametrize("name", ["sft", "org/sft-2", "A.b_c", "0", "a" * 200])
def test_names_of_adapters(name: str) -> None:
    assert is_adapter_name(name)


@pytest.mark.parametrize(
    "name", ["", "a+b", "a,b", "../a", "a/../b", "a/b/c", "/a", ".a", "a b", "ä", "a\n", "a" * 201]
)
def test_other_names_are_none(name: str) -> None:
    assert not is_adapter_name(name)
