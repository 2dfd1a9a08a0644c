"""config.json: nested configs, defaults, rope in its spellings, end-of-text ids, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoint.architectures import check_architecture
from models.checkpoint.config import VISION_FILE, eos_ids, parse_config, read_config, read_generation_config
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.text_config import read_text_config
from tests.models.checkpoint.fuzzing import Patches, patched, patches, refusal_of
from tests.support.tiny_checkpoints import llama_config

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def keys_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a config that this build runs."""
    parsed = parse_config(config)
    check_architecture(parsed.text, config.get("text_config", config), "config.json")
    return dict(parsed.keys)


def refused_key(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointRejected) as caught:
        keys_of(config)
    assert caught.value.file == "config.json"
    return caught.value.key


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "model_type",
    ],
)
def test_names_a_missing_key(key: str) -> None:
    assert refused_key(llama_config(**{key: None, "architectures": None})) == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 64.0),
        ("hidden_size", 1 << 40),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**9),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", -1e-5),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 8),
        ("head_dim", 7),
        ("hidden_act", "gelu"),
        ("layer_types", ["linear_attention"]),
        ("sliding_window", 16),
        ("attention_bias", "yes"),
        ("rope_theta", 0),
        ("partial_rotary_factor", 0.5),
        ("eos_token_id", "2"),
        ("eos_token_id", [2, -1]),
        ("eos_token_id", True),
        ("model_type", "mamba"),
        ("text_config", 3),
    ],
)
def test_names_a_key_whose_value_it_does_not_run(key: str, value: object) -> None:
    assert refused_key(llama_config(**{key: value})) == key


def test_fills_in_what_a_llama_leaves_out() -> None:
    config = keys_of(llama_config(num_key_value_heads=None, rope_theta=None))
    assert (config["num_key_value_heads"], config["head_dim"], config["rope_theta"]) == (4, 16, 10000.0)
    assert config["rope_scaling"] is None


def test_a_given_head_width_stays() -> None:
    assert keys_of(llama_config(head_dim=32))["head_dim"] == 32


def test_takes_the_text_part_of_a_wrapper() -> None:
    inner = llama_config(eos_token_id=7)
    inner.pop("tie_word_embeddings")
    config = keys_of(
        {
            "model_type": "llava",
            "hidden_size": 1,
            "tie_word_embeddings": True,
            "eos_token_id": [8, 9],
            "text_config": inner,
        }
    )
    assert (config["model_type"], config["hidden_size"], config["tie_word_embeddings"]) == ("llama", 64, True)
    assert eos_ids(config, "config.json") == {7, 8, 9}


def test_a_wrapper_does_not_lend_its_sizes() -> None:
    assert refused_key({"hidden_size": 64, "text_config": llama_config(hidden_size=None)}) == "hidden_size"


@pytest.mark.parametrize(
    ("given_keys", "theta", "scaling"),
    [
        ({"rope_scaling": None, "rope_theta": 5e5}, 5e5, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 1e4, {"rope_type": "llama3", **LLAMA3}),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 1e4, {"rope_type": "dynamic", "factor": 2.0}),
        (
            {"rope_scaling": YARN},
            1e4,
            {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1 + 0.1 * math.log(4)},
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            {"rope_type": "llama3", **LLAMA3},
        ),
    ],
)
def test_both_spellings_of_rope_become_one(
    given_keys: dict[str, Any], theta: float, scaling: dict[str, Any] | None
) -> None:
    config = keys_of(llama_config() | given_keys)
    assert (config["rope_theta"], config["rope_scaling"]) == (theta, scaling)


def test_what_is_passed_on_of_a_rotation_is_read_as_the_same() -> None:
    first = keys_of(llama_config(rope_scaling={**YARN, "beta_fast": 16}))
    again = keys_of({**first})
    assert again["rope_scaling"] == first["rope_scaling"]


@pytest.mark.parametrize("more", [{"mscale": 1.0}, {"mscale_all_dim": 0}, {"attention_factor": 1.13863}])
def test_a_magnitude_that_follows_from_the_factor_may_be_stated(more: dict[str, Any]) -> None:
    yarn = read_text_config(llama_config(rope_scaling={**YARN, **more})).rope["full_attention"].yarn
    assert yarn is not None
    assert yarn.magnitude == pytest.approx(1 + 0.1 * math.log(4))


def test_two_magnitudes_share_one_another_out() -> None:
    scaling = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
    yarn = read_text_config(llama_config(rope_scaling=scaling)).rope["full_attention"].yarn
    assert yarn is not None
    assert yarn.magnitude == 1


def test_a_base_of_one_has_no_wavelengths_to_choose_from() -> None:
    assert refused_key(llama_config(rope_scaling=YARN, rope_theta=1)) == "rope_theta"


def test_a_context_that_grows_needs_to_be_known() -> None:
    scaling = {"type": "dynamic", "factor": 2}
    assert refused_key(llama_config(rope_scaling=scaling, max_position_embeddings=None)) == "max_position_embeddings"


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "mrope", "factor": 4}, "rope_scaling.rope_type"),
        ({"type": "su", "factor": 4}, "rope_scaling.rope_type"),
        ({"rope_type": "yarn", "factor": 4}, "rope_scaling.original_max_position_embeddings"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, "rope_scaling.factor"),
        ({"rope_type": "longrope", "long_factor": [1.0]}, "rope_scaling.long_factor"),
        ({"type": "dynamic"}, "rope_scaling.factor"),
        (
            {"type": "dynamic", "factor": 4, "original_max_position_embeddings": 64},
            "rope_scaling.original_max_position_embeddings",
        ),
        *(
            ({**YARN, key: value}, f"rope_scaling.{key}")
            for key, value in (
                ("beta_fast", 0.5),
                ("beta_fast", 1e9),
                ("beta_slow", 1e-9),
                ("beta_slow", "1"),
                ("original_max_position_embeddings", 0.5),
                ("truncate", False),
                ("mscale", 0.7),
                ("mscale_all_dim", -1),
                ("attention_factor", 1.0),
            )
        ),
        ({"type": ["linear"]}, "rope_scaling.type"),
        ({"type": "linear"}, "rope_scaling.factor"),
        ({"type": "linear", "factor": "2"}, "rope_scaling.factor"),
        ({"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}, "rope_scaling.high_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope_scaling.low_freq_factor"),
        ([], "rope_scaling"),
    ],
)
def test_refuses_rope_that_it_does_not_run(scaling: object, key: str) -> None:
    assert refused_key(llama_config(rope_scaling=scaling)) == key


def test_end_ids_are_one_or_a_list() -> None:
    assert eos_ids({"eos_token_id": 3}, "x") == {3}
    assert eos_ids({"eos_token_id": [3, 4, 4]}, "x") == {3, 4}
    assert eos_ids({"eos_token_id": None}, "x") == frozenset()


def test_a_folder_without_generation_config_has_an_empty_one(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == ({}, b"")


def test_says_that_config_json_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"^config.json: is not there$"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"text"'])
def test_refuses_what_is_no_json_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointCorrupt):
        read_config(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *llama_config(),
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "text_config",
    "layer_types",
    "quantization",
    "hidden_act",
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), st.sets(st.sampled_from(KEYS), max_size=2))
def test_any_values_give_a_config_or_a_checkpoint_error(
    tmp_path: Path, changes: dict[str, Any], removed: set[str]
) -> None:
    config = {key: value for key, value in (llama_config() | changes).items() if key not in removed}
    (tmp_path / "config.json").write_text(json.dumps(config))
    error = refusal_of(lambda: read_config(tmp_path))
    assert error is None or error.file == "config.json"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patches(st.integers(0, 1000)))
def test_mutated_bytes_give_a_config_or_a_checkpoint_error(tmp_path: Path, changes: Patches) -> None:
    (tmp_path / "config.json").write_bytes(patched(json.dumps(llama_config()).encode(), changes))
    error = refusal_of(lambda: read_config(tmp_path))
    assert error is None or error.file == "config.json"


def test_tells_whether_weights_for_pictures_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    assert not read_config(tmp_path)[0].has_vision
    (tmp_path / VISION_FILE).touch()
    assert read_config(tmp_path)[0].has_vision


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_config_that_names_code_is_refused(tmp_path: Path, is_nested: bool) -> None:
    inner = llama_config(model_file="graph.py")
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inner} if is_nested else inner))
    with pytest.raises(CheckpointRejected) as caught:
        read_config(tmp_path)
    assert (caught.value.file, caught.value.key) == ("config.json", "model_file")
    assert "no checkpoint's code is run" in caught.value.problem
