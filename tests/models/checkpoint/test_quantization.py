"""Which layers are quantized and how: overrides in every spelling, and schemes that are refused by name."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.quantization import LayerQuantization, Quantization, Trellis, parse_quantization
from tests.models.checkpoint.fuzzing import refusal_of

MODULE = "model.layers.0.mlp.up_proj"
SPELLINGS = [
    "model.layers.0.mlp.up_proj",
    "layers.0.mlp.up_proj",
    "model.language_model.layers.0.mlp.up_proj",
    "language_model.model.layers.0.mlp.up_proj",
    "language_model.layers.0.mlp.up_proj",
]


def parsed(block: dict[str, Any], key: str = "quantization") -> Quantization:
    quantization = parse_quantization({key: block})
    assert quantization is not None
    return quantization


def refusal(block: dict[str, Any], key: str = "quantization") -> CheckpointRejected:
    with pytest.raises(CheckpointRejected) as caught:
        parse_quantization({key: block})
    assert caught.value.file == "config.json"
    return caught.value


def test_a_plain_checkpoint_has_none() -> None:
    assert parse_quantization({"quantization": None}) is None


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_reads_mlx_quantization_under_both_keys(key: str) -> None:
    quantization = parsed({"group_size": 64, "bits": 4}, key)
    assert quantization.for_layer(MODULE) == LayerQuantization(4, 64, "affine")


def test_mlx_own_block_goes_before_the_source_model_s() -> None:
    config = {"quantization": {"group_size": 32, "bits": 8}, "quantization_config": {"quant_method": "fp8"}}
    quantization = parse_quantization(config)
    assert quantization is not None
    assert quantization.default == LayerQuantization(8, 32)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_override_is_found_however_its_key_is_spelled(spelling: str) -> None:
    quantization = parsed({"group_size": 64, "bits": 4, spelling: {"bits": 6}})
    assert quantization.for_layer(MODULE) == LayerQuantization(6, 64)
    assert quantization.for_layer("model.layers.1.mlp.up_proj") == LayerQuantization(4, 64)


@pytest.mark.parametrize("spelling", ["lm_head", "language_model.lm_head", "model.lm_head"])
def test_the_head_is_found_however_its_key_is_spelled(spelling: str) -> None:
    assert parsed({"group_size": 64, "bits": 4, spelling: False}).for_layer("lm_head") is None


def test_mxfp4_layers_beside_affine_ones_each_keep_their_own() -> None:
    experts = {"mode": "mxfp4", "group_size": 32, "bits": 4}
    quantization = parsed({"group_size": 64, "bits": 8, "model.layers.0.mlp.experts.up_proj": experts})
    packed = quantization.for_layer("model.layers.0.mlp.experts.up_proj")
    assert packed == LayerQuantization(4, 32, "mxfp4")
    assert not LayerQuantization(4, 32, "mxfp4").has_biases
    assert LayerQuantization(8, 64).has_biases


@pytest.mark.parametrize(("mode", "bits", "group_size"), [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)])
def test_a_float_mode_brings_its_own_sizes(mode: str, bits: int, group_size: int) -> None:
    quantization = parsed({"group_size": 64, "bits": 5, MODULE: {"mode": mode}})
    assert quantization.for_layer(MODULE) == LayerQuantization(bits, group_size, mode)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"trellis": {"L": 12}}, LayerQuantization(4, 64, "trellis", Trellis(12, "1mad", 1))),
        (
            {"bits": 3, "group_size": 256, "trellis": {"L": 16, "code": "hyb", "axis": 0}},
            LayerQuantization(3, 256, "trellis", Trellis(16, "hyb", 0)),
        ),
        ({"bits": 2, "trellis": {"L": 12, "axis": 5}}, LayerQuantization(2, 64, "trellis", Trellis(12, "1mad", 1))),
    ],
)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_reads_a_trellis_with_what_it_leaves_out(
    fields: dict[str, Any], expected: LayerQuantization, spelling: str
) -> None:
    quantization = parsed({"group_size": 64, "bits": 4, spelling: {"mode": "trellis", **fields}})
    assert quantization.for_layer(MODULE) == expected


def test_says_what_a_trellis_without_its_block_lacks() -> None:
    error = refusal({"group_size": 64, "bits": 4, MODULE: {"mode": "trellis"}})
    assert error.problem == 'the mode "trellis" needs a trellis {L, code, axis} block'


def test_other_scalars_are_no_overrides() -> None:
    quantization = parsed({"group_size": 64, "bits": 4, "linear_class": "x", "tied": True, "n": 3})
    assert quantization.per_layer == {}


def test_an_override_that_matches_no_module_is_named() -> None:
    quantization = parsed({"group_size": 64, "bits": 4, "model.layers.9.mlp.up_proj": {"bits": 8}})
    with pytest.raises(CheckpointRejected) as caught:
        quantization.check_modules([MODULE])
    assert caught.value.key == "quantization.model.layers.9.mlp.up_proj"


def test_overrides_that_match_pass_the_audit() -> None:
    parsed({"group_size": 64, "bits": 4, SPELLINGS[2]: {"bits": 8}}).check_modules([MODULE])


def test_two_spellings_that_differ_are_refused() -> None:
    block = {"group_size": 64, "bits": 4, SPELLINGS[0]: {"bits": 8}, SPELLINGS[1]: {"bits": 6}}
    assert refusal(block).key == f"quantization.{SPELLINGS[1]}"


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_reads_every_affine_width(bits: int, group_size: int) -> None:
    assert parsed({"bits": bits, "group_size": group_size}).default == LayerQuantization(bits, group_size)


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"group_size": 64, "bits": 7}, "quantization.bits"),
        ({"group_size": 64, "bits": True}, "quantization.bits"),
        ({"group_size": 64, "bits": "4"}, "quantization.bits"),
        ({"group_size": 48, "bits": 4}, "quantization.group_size"),
        ({"bits": 4}, "quantization.group_size"),
        ({"group_size": 64}, "quantization.bits"),
        ({"group_size": 64, "bits": 4, "mode": "trellis"}, "quantization.mode"),
        ({"group_size": 64, "bits": 4, "mode": ["affine"]}, "quantization.mode"),
        ({"group_size": 64, "bits": 4, "mode": "mxfp4"}, "quantization.group_size"),
        ({"group_size": 64, "bits": 4, MODULE: {"bits": 9}}, f"quantization.{MODULE}.bits"),
        ({"group_size": 64, "bits": 4, MODULE: {"mode": "trellis"}}, f"quantization.{MODULE}"),
        ({"group_size": 64, "bits": 4, MODULE: {"mode": "trellis", "trellis": [12]}}, f"quantization.{MODULE}"),
        ({"group_size": 64, "bits": 4, MODULE: {"mode": "trellis", "trellis": {}}}, f"quantization.{MODULE}.trellis.L"),
        (
            {"group_size": 64, "bits": 4, MODULE: {"mode": "trellis", "trellis": {"L": 12, "code": 1}}},
            f"quantization.{MODULE}.trellis.code",
        ),
    ],
)
def test_names_the_key_of_what_it_does_not_read(block: dict[str, Any], key: str) -> None:
    assert refusal(block).key == key


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitnet", "bitsandbytes", "mxfp4"])
def test_names_a_foreign_scheme(method: str) -> None:
    error = refusal({"quant_method": method, "bits": 4, "group_size": 128}, "quantization_config")
    assert error.key == "quantization_config.quant_method"
    assert method in str(error)


def test_names_the_format_of_compressed_tensors() -> None:
    block = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {}}}
    error = refusal(block, "quantization_config")
    assert "compressed-tensors (float-quantized)" in str(error)


def test_says_it_in_words() -> None:
    assert str(parsed({"group_size": 32, "bits": 4})) == "affine 4-bit g32"
    assert str(parsed({"group_size": 32, "bits": 4, MODULE: {"bits": 8}})) == "affine 4-bit g32, mixed"


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["bits", "group_size", "mode", "quant_method", "format", MODULE, ""]) | st.text(max_size=4),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=4)
        | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.sampled_from(["bits", "group_size", "mode"]), st.integers() | st.text(max_size=4)),
        max_size=5,
    )
)
def test_any_block_is_read_or_refused(block: dict[str, Any]) -> None:
    error = refusal_of(lambda: parse_quantization({"quantization": block}))
    assert error is None or error.key.startswith("quantization")
