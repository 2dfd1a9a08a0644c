"""Qwen 3.5's checkpoints: which configs are refused, and how published tensors become those of the graph."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from models.checkpoint.architectures import check_architecture
from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.config import parse_config
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.kv_sizes import KVSizes, kv_layers
from models.checkpoint.qwen3_5_view import qwen3_5_view
from models.checkpoint.weights import Weights
from tests.models.families import OTHER_PARTS
from tests.support.tiny_families import Tiny, family_config, write_family
from tests.support.tiny_models import write_tensors

ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}


def checked(model_type: str = "qwen3_5", **changes: Any) -> tuple[bool, ...]:
    """Check a config as a load does; return which of its layers are linear."""
    raw = family_config(Tiny(model_type, changes))
    text = parse_config(raw).text
    check_architecture(text, raw, "config.json")
    return text.linear_layers


def refused_key(model_type: str = "qwen3_5", **changes: Any) -> str | None:
    with pytest.raises(CheckpointRejected) as caught:
        checked(model_type, **changes)
    return caught.value.key


def test_layers_are_those_of_the_list_or_all_but_each_fourth() -> None:
    listed = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    assert checked(layer_types=listed) == (True, False, False, True)
    assert checked(full_attention_interval=None) == (True, True, True, False)
    assert checked(full_attention_interval=2) == (True, False, True, False)
    assert checked(rope_parameters={**ROPE, "type": "mrope", "rope_type": None}) == (True, True, True, False)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"linear_num_value_heads": None}, "linear_num_value_heads"),
        ({"linear_num_key_heads": None}, "linear_num_key_heads"),
        ({"linear_num_key_heads": 3}, "linear_num_key_heads"),
        ({"linear_key_head_dim": None}, "linear_key_head_dim"),
        ({"linear_value_head_dim": None}, "linear_value_head_dim"),
        ({"linear_conv_kernel_dim": None}, "linear_conv_kernel_dim"),
        ({"full_attention_interval": 5}, "full_attention_interval"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 4}, "layer_types"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_theta": 1e7}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type"),
    ],
)
def test_what_is_not_computed_or_left_to_be_guessed_is_refused_by_key(changes: dict[str, Any], key: str) -> None:
    assert refused_key(**changes) == key


@pytest.mark.parametrize("key", ["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"])
def test_a_mixture_says_how_large_it_is(key: str) -> None:
    assert refused_key("qwen3_5_moe", **{key: None}) == key


def test_a_mixture_has_shares_that_sum_to_one_and_no_dense_width() -> None:
    raw = family_config(Tiny("qwen3_5_moe", {"intermediate_size": None}))
    text = parse_config({key: value for key, value in raw.items() if value is not None}).text
    assert text.experts.is_normalized
    assert text.intermediate_size == text.experts.shared_size


def published(
    folder: Path, *, extra: Mapping[str, tuple[int, ...]] | None = None, is_published: bool = True
) -> Checkpoint:
    tiny = Tiny("qwen3_5", extra={} if extra is None else extra, is_published=is_published)
    return open_checkpoint(write_family(folder, tiny))


def taken(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> mx.array:
    return Weights(checkpoint, mx.float32, view=qwen3_5_view(checkpoint)).tensor(name, shape)


def test_a_converted_checkpoint_needs_no_view(tmp_path: Path) -> None:
    assert qwen3_5_view(published(tmp_path, is_published=False)) is None


def test_published_tensors_become_those_that_were_converted(tmp_path: Path) -> None:
    before, after = published(tmp_path / "a"), published(tmp_path / "b", is_published=False)
    view = qwen3_5_view(before)
    assert view is not None
    assert view.repair is not None
    shapes = {
        "model.norm.weight": (64,),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.3.self_attn.q_norm.weight": (32,),
        "model.layers.0.linear_attn.norm.weight": (32,),
        "model.layers.0.linear_attn.conv1d.weight": (192, 4, 1),
        "model.layers.0.linear_attn.A_log": (4,),
    }
    for name, shape in shapes.items():
        assert mx.allclose(taken(before, name, shape), taken(after, name, shape), atol=1e-6).item(), name


def test_parts_that_no_text_model_reads_are_not_there(tmp_path: Path) -> None:
    checkpoint = published(tmp_path, extra=OTHER_PARTS)
    view = qwen3_5_view(checkpoint)
    assert view is not None
    assert set(checkpoint.tensors) - set(view.names) == set(OTHER_PARTS)


@pytest.mark.parametrize("part", ["mtp.fc.weight", "model.visual.merger.weight"])
def test_a_guessing_part_alone_says_that_norms_are_stored_less_one(tmp_path: Path, part: str) -> None:
    checkpoint = published(tmp_path, extra={part: (2, 2)}, is_published=False)
    view = qwen3_5_view(checkpoint)
    assert view is not None
    assert (view.repair is not None) is part.startswith("mtp")


def test_a_dtype_that_norms_are_stored_in_is_that_of_the_sum(tmp_path: Path) -> None:
    folder = write_family(tmp_path, Tiny("qwen3_5", is_published=True))
    tensors = cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))
    name = "model.norm.weight"
    tensors[name] = tensors[name].astype(mx.bfloat16)
    mx.eval(tensors)
    write_tensors(folder, tensors)
    found = taken(open_checkpoint(folder), name, (64,))
    assert mx.array_equal(found, (tensors[name] + 1.0).astype(mx.float32)).item()


def test_states_are_counted_once_for_each_row_with_the_copies_that_are_kept() -> None:
    text = parse_config(family_config(Tiny("qwen3_5"))).text
    sizes = KVSizes(kv_layers(text), KVScheme(), 4)
    state = 3 * 4 * (3 * 192 + 4 * 32 * 16)  # layers, bytes, what the convolution sees, the memory
    keys = 2 * 2 * 32 * 4  # keys and values, heads, width, bytes
    assert (sizes.state_bytes, sizes.token_bytes, sizes.growth_bytes) == (state, keys, keys)
    # 31,488 bytes of states against 16,384 of a block's keys and values
    assert (sizes.mark_blocks, sizes.num_marks) == (1, 17)
    assert sizes.rows_bytes(100, 3) == 100 * keys + 3 * 18 * state
    assert KVSizes(sizes.layers, KVScheme.from_text("8:g32"), 4).growth_bytes < keys


def test_where_states_are_large_few_copies_are_kept() -> None:
    large = {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128}
    text = parse_config(family_config(Tiny("qwen3_5", {**large, "linear_value_head_dim": 128}))).text
    sizes = KVSizes(kv_layers(text), KVScheme(), 4)
    assert sizes.state_bytes > 4 * 16 * 32 * sizes.growth_bytes
    assert (sizes.mark_blocks, sizes.num_marks) == (16, 2)
