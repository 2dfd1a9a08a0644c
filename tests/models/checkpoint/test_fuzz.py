"""Configs, indexes and headers with anything in them are read or end in our own error that says where.

Ten thousand of each, in quarters of one seed each: the seed stands in a failing test's name, and the smallest failing
input is printed. Each harness has a test that it finds a defect.
"""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from models import gemma3, gemma4, llama, mistral, phi3, qwen2, qwen3, smollm3
from models.borrowed.checkpoint import open_any
from models.checkpoint.architectures import check_architecture
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.config import parse_config
from models.checkpoint.folder import INDEX_FILE, read_folder_tensors
from models.checkpoint.kv_sizes import kv_layers
from models.checkpoint.safetensors import read_safetensors_header
from models.checkpoint.shards import Shards
from models.checkpoint.text_config import TextConfig
from models.layers.dense import DenseConfig
from models.layers.rope import frequencies
from tests.models.borrowed.tiny import CONFIGS as OTHER_CONFIGS
from tests.models.checkpoint.fuzzing import Patches, patched, patches, refusal_of
from tests.models.families import FAMILIES
from tests.support.tiny_families import family_config
from tests.support.tiny_models import write_llama

_UNCHECKED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
SEEDS = (1, 2, 3, 4)
NUM_EXAMPLES = 2500
# What nobody should need so many inputs to find.
NUM_EXAMPLES_FOR_A_DEFECT = 2000
# Where each input is a folder that is opened.
NUM_EXAMPLES_WITH_FILES = 500

GRAPHS: dict[str, Callable[[TextConfig], object]] = {
    "llama": llama.dense_config,
    "mistral": mistral.dense_config,
    "qwen2": qwen2.dense_config,
    "qwen3": qwen3.dense_config,
    "qwen3_moe": qwen3.dense_config,
    "smollm3": smollm3.dense_config,
    "phi3": phi3.dense_config,
    "gemma3_text": gemma3.Config.of,
    "gemma4_text": gemma4.layer_configs,
    "qwen3_5": kv_layers,
    "qwen3_5_moe": kv_layers,
}
WORDS = [
    "",
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "default",
    "linear",
    "llama3",
    "yarn",
    "dynamic",
    "longrope",
    "LlamaForCausalLM",
    "trellis",
    "affine",
    "mxfp4",
    "\ud800",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.integers()
    | st.floats()
    | st.sampled_from([*WORDS, 10**400, 2**31, 2**63])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "bits", "L"]), inner),
    max_leaves=4,
)
CONFIGS: list[dict[str, Any]] = [
    *(
        {
            **family_config(tiny),
            "quantization": {
                "bits": 4,
                "group_size": 64,
                "model.layers.0.mlp": {"mode": "trellis", "trellis": {"L": 12}},
            },
        }
        for tiny in FAMILIES.values()
    ),
    {"model_type": "diffusion_gemma", "canvas_length": 256, "text_config": None},
    {**family_config(FAMILIES["qwen3 untied"]), "model_type": "qwen3_5", "rope_parameters": {"rope_theta": 1e6}},
    {
        "model_type": "gemma4",
        "text_config": family_config(FAMILIES["gemma4 edge"]),
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    },
]
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "mlx"},
    "model.norm.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "lm_head.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
}
INDEX: dict[str, Any] = {
    "metadata": {"total_size": 28},
    "weight_map": {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"},
}
OTHERS: list[dict[str, Any]] = [
    *({"model_type": model_type, **config} for model_type, config in OTHER_CONFIGS.items()),
    {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", "vocab_size": 288}, "model_file": None},
]
OTHER_NAMES = st.sampled_from(["stablelm", "falcon_mamba", "../llama", "a\0b", "\ud800", "cache"])
NAMES = st.sampled_from(["a.safetensors", "b.safetensors", "../a.safetensors", "a\0.safetensors", "\ud800.safetensors"])


@st.composite
def mutations(draw: st.DrawFn, trees: list[dict[str, Any]], values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw one of the trees with up to three of its entries changed, taken out or put beside others."""
    tree = deepcopy(draw(st.sampled_from(trees)))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(list(places(tree))))
        action = draw(st.sampled_from(["change", "remove", "add"]))
        if action == "remove" and isinstance(holder, dict):
            holder.pop(key, None)
        elif action == "add" and isinstance(holder, dict):
            holder[draw(st.sampled_from(ADDED) | st.text(max_size=4))] = draw(values)
        else:
            holder[key] = draw(values)
        if not tree:
            break
    return tree


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every entry of a tree as its holder and its key there."""
    found: list[tuple[Any, Any]] = []
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(entries):
        found.append((tree, key))
        if isinstance(value, dict | list):
            found.extend(places(value))
    return found


ADDED = sorted(
    {key for config in CONFIGS for key in config}
    | {"rope_scaling", "layer_types", "text_config", "head_dim", "architectures"}
    | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate", "factor", "rope_type"}
)


def run(number: int, inputs: st.SearchStrategy[Any], check: Callable[[Any], None], count: int = NUM_EXAMPLES) -> None:
    """Check so many inputs that follow from a seed."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=_UNCHECKED,
    )
    @given(inputs)
    def every(value: Any) -> None:
        check(value)

    every()


def check_config(raw: dict[str, Any]) -> None:
    def read() -> None:
        text = parse_config(raw).text
        nested = raw.get("text_config")
        check_architecture(text, raw if nested is None else nested, "config.json")
        graph = GRAPHS[text.model_type](text)
        if isinstance(graph, DenseConfig) and graph.rope.has_frequencies:
            frequencies(text.head_dim, graph.rope)

    error = refusal_of(read)
    assert error is None or (error.file == "config.json" and error.key)


def header_bytes(header: object) -> bytes:
    content = json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + bytes(28)


def header_check(folder: Path) -> Callable[[bytes], None]:
    path = folder / "model.safetensors"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        error = refusal_of(lambda: read_safetensors_header(path))
        assert error is None or (error.file == path.name and str(folder) not in str(error))

    return check


def index_check(folder: Path) -> Callable[[dict[str, Any]], None]:
    for name, dtype, shape in (("model.norm", "F32", [2, 3]), ("lm_head", "BF16", [2])):
        size = 24 if dtype == "F32" else 4
        entry = {f"{name}.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}
        content = json.dumps(entry).encode()
        file = "a.safetensors" if dtype == "F32" else "b.safetensors"
        (folder / file).write_bytes(len(content).to_bytes(8, "little") + content + bytes(size))

    def check(index: dict[str, Any]) -> None:
        (folder / INDEX_FILE).write_text(json.dumps(index))
        error = refusal_of(lambda: read_folder_tensors(folder))
        assert error is None or error.file
        assert error is None or error.file != INDEX_FILE or error.key

    return check


def loading_check(folder: Path) -> Callable[[bytes], None]:
    checkpoint = open_checkpoint(write_llama(folder))
    path = folder / "model.safetensors"

    def load(content: bytes) -> None:
        path.write_bytes(content)
        shards = Shards(replace(checkpoint, tensors=read_folder_tensors(folder)[0]))
        mx.eval([shards.array(name) for name in shards.tensors])

    def check(content: bytes) -> None:
        error = refusal_of(lambda: load(content))
        assert error is None or error.file == path.name

    return check


def other_check(folder: Path) -> Callable[[dict[str, Any]], None]:
    write_llama(folder)

    def check(config: dict[str, Any]) -> None:
        (folder / "config.json").write_text(json.dumps(config))
        error = refusal_of(lambda: open_any(folder, allow_mlx_lm=True))
        assert error is None or (error.file == "config.json" and error.key)

    return check


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
def test_any_config_is_read_or_refused_by_key(number: int) -> None:
    run(number, mutations(CONFIGS, VALUES), check_config)


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
def test_any_header_is_read_or_refused_by_file(tmp_path: Path, number: int) -> None:
    run(number, mutations([HEADER], VALUES).map(header_bytes), header_check(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
def test_any_bytes_of_a_header_are_read_or_refused_by_file(tmp_path: Path, number: int) -> None:
    def change(changes: Patches) -> bytes:
        return patched(header_bytes(HEADER), changes)

    run(number, patches(st.integers(0, 300)).map(change), header_check(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
def test_any_index_is_read_or_refused_by_file_and_key(tmp_path: Path, number: int) -> None:
    run(number, mutations([INDEX], VALUES | NAMES), index_check(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS[:2])
def test_any_header_that_is_read_is_one_that_mlx_reads_too(tmp_path: Path, number: int) -> None:
    inputs = mutations([HEADER], VALUES).map(header_bytes)
    run(number, inputs, loading_check(tmp_path / "tiny"), NUM_EXAMPLES_WITH_FILES)


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS[:2])
def test_any_config_of_another_architecture_is_read_or_refused_by_key(tmp_path: Path, number: int) -> None:
    run(number, mutations(OTHERS, VALUES | OTHER_NAMES), other_check(tmp_path / "tiny"), NUM_EXAMPLES_WITH_FILES)


def test_a_number_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(config: dict[str, Any], key: str, _file: str, *, default: int | None = None, **_limits: int) -> Any:
        return config.get(key, default)

    monkeypatch.setattr("models.checkpoint.text_config.read_int", unchecked)
    with pytest.raises(Exception, match=r"."):
        run(1, mutations(CONFIGS, VALUES), check_config, NUM_EXAMPLES_FOR_A_DEFECT)


def test_a_kind_of_positions_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = [config for config in CONFIGS if (config.get("rope_scaling") or {}).get("type") == "yarn"]

    def unchecked(fields: dict[str, Any], key: str, _file: str, *, default: float | None = None) -> Any:
        return fields.get(key, default)

    monkeypatch.setattr("models.checkpoint.yarn.read_float", unchecked)
    with pytest.raises(TypeError):
        run(1, mutations(yarn, VALUES), check_config, NUM_EXAMPLES_FOR_A_DEFECT)


def test_data_that_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.checkpoint.safetensors._checked_ints", lambda value, *_: tuple(value))
    inputs = mutations([HEADER], VALUES).map(header_bytes)
    with pytest.raises(Exception, match=r"."):
        run(1, inputs, loading_check(tmp_path / "tiny"), NUM_EXAMPLES_FOR_A_DEFECT)


def test_a_name_of_another_architecture_that_is_not_checked_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.borrowed.known._NAME", re.compile(r".*", re.DOTALL))
    with pytest.raises(ValueError, match=r"null|surrogates"):
        run(1, mutations(OTHERS, VALUES | OTHER_NAMES), other_check(tmp_path / "tiny"), NUM_EXAMPLES_FOR_A_DEFECT)


def test_a_shape_that_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.checkpoint.safetensors._checked_ints", lambda value, *_: tuple(value))
    inputs = mutations([HEADER], VALUES).map(header_bytes)
    with pytest.raises(Exception, match=r"."):
        run(1, inputs, header_check(tmp_path), NUM_EXAMPLES_FOR_A_DEFECT)


def test_a_file_s_name_that_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.checkpoint.folder.inside", lambda folder, name, named_by: folder / name)
    with pytest.raises(ValueError, match=r"null|surrogates"):
        run(1, mutations([INDEX], VALUES | NAMES), index_check(tmp_path), NUM_EXAMPLES_FOR_A_DEFECT)
