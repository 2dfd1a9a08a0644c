"""Reading adapters: every layout and spelling gives the same matrices, and what does not fit is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.adapters.adapter import Adapter, open_adapter
from models.adapters.errors import AdapterError, AdapterMissing, AdapterRejected
from models.adapters.target import AdapterTarget
from tests.support.tiny_adapters import ATTENTION, Layout, factors, llama_targets, named, settings_of, write_adapter

TARGETS = llama_targets()
CHOSEN = [target for target in TARGETS.values() if target.module.endswith(ATTENTION)]
MATRICES = factors(CHOSEN)
Q0 = "model.layers.0.self_attn.q_proj"


def read(folder: Path, targets: dict[str, AdapterTarget] | None = None) -> Adapter:
    return open_adapter(folder, TARGETS if targets is None else targets).read()


def refusal(folder: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        read(folder)
    assert str(folder.parent) not in str(caught.value)
    return str(caught.value)


def write(folder: Path, layout: Layout = "mlx", tensors: dict[str, np.ndarray] | None = None, **settings: Any) -> Path:
    made = named(MATRICES, layout) if tensors is None else tensors
    return write_adapter(folder, made, settings_of(layout, **settings))


def oriented(adapter: Adapter, module: str) -> tuple[np.ndarray, np.ndarray]:
    """Return [inputs, rank] and [rank, outputs]."""
    layer = adapter.layers[module]
    return (layer.a.T, layer.b.T) if layer.is_transposed else (layer.a, layer.b)


@pytest.mark.parametrize("layout", ["mlx", "peft"])
def test_reads_the_matrices_of_either_layout(tmp_path: Path, layout: Layout) -> None:
    adapter = read(write(tmp_path / "a", layout))
    assert set(adapter.layers) == set(MATRICES)
    for module, expected in MATRICES.items():
        for found, wanted in zip(oriented(adapter, module), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert {layer.scale for layer in adapter.layers.values()} == {2.0}
    assert (adapter.rank, adapter.scale, adapter.num_skipped) == (4, 2.0, 0)
    assert adapter.nbytes == sum(a.nbytes + b.nbytes for a, b in MATRICES.values())


@pytest.mark.parametrize("prefix", ["", "base_model.model.", "language_model.", "base_model.model.language_model."])
@pytest.mark.parametrize("layout", ["mlx", "peft"])
def test_prefixes_of_either_style_are_taken_off(tmp_path: Path, layout: Layout, prefix: str) -> None:
    adapter = read(write(tmp_path / "a", layout, named(MATRICES, layout, prefix=prefix)))
    assert set(adapter.layers) == set(MATRICES)


def test_upper_case_without_a_suffix_is_read_too(tmp_path: Path) -> None:
    tensors = {name.replace("lora_a", "lora_A"): x for name, x in named(MATRICES, "mlx").items()}
    np.testing.assert_array_equal(oriented(read(write(tmp_path / "a", tensors=tensors)), Q0)[0], MATRICES[Q0][0])


@pytest.mark.parametrize(
    ("names", "is_transposed"),
    [
        (("lora_a", "lora_b"), False),
        (("lora_A.weight", "lora_B.weight"), True),
        (("lora_A", "lora_B"), True),
        (("lora_a.weight", "lora_b.weight"), True),
        (("lora_A.weight", "lora_b"), False),
        (("lora_a", "lora_B"), False),
    ],
)
def test_names_decide_how_square_matrices_lie(tmp_path: Path, names: tuple[str, str], is_transposed: bool) -> None:
    square = np.random.default_rng(1).normal(size=(2, 64, 64)).astype(np.float32)
    tensors = {f"{Q0}.{name}": matrix for name, matrix in zip(names, square, strict=True)}
    adapter = read(write(tmp_path / "a", tensors=tensors, rank=64))
    assert adapter.layers[Q0].is_transposed is is_transposed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_stay_as_they_are_stored(tmp_path: Path, dtype: str) -> None:
    folder = write_adapter(tmp_path / "a", named(MATRICES, "mlx"), settings_of("mlx"), dtype=dtype)
    adapter = read(folder)
    assert adapter.nbytes == sum(a.nbytes + b.nbytes for a, b in MATRICES.values()) // 2
    assert adapter.layers[Q0].is_bfloat16 == ((True, True) if dtype == "bfloat16" else (False, False))


def test_a_revision_changes_with_weights_and_scale_and_with_nothing_else(tmp_path: Path) -> None:
    plain = read(write(tmp_path / "a")).revision
    assert read(write(tmp_path / "same", num_layers=7)).revision == plain
    other = {name: matrix * 2 for name, matrix in named(MATRICES, "mlx").items()}
    changed = [
        read(write(tmp_path / "weights", tensors=other)).revision,
        read(write(tmp_path / "scale", lora_parameters={"scale": 4.0})).revision,
        read(write(tmp_path / "roots", lora_parameters={"rs_lora": True})).revision,
        read(write(tmp_path / "rank", rank=None)).revision,
    ]
    assert len({plain, *changed}) == 5
    assert len(plain) == 64


def test_files_and_settings_are_found_in_their_order(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", lora_parameters={"scale": 3.0})
    write_adapter(folder, named(MATRICES, "peft"), settings_of("peft"), weights_file="adapter_model.safetensors")
    write_adapter(folder, named(MATRICES, "mlx"), settings_of("mlx"), settings_file="optiq_lora_config.json")
    adapter = read(folder)
    assert (adapter.scale, adapter.layers[Q0].is_transposed) == (2.0, False)
    (folder / "adapters.safetensors").unlink()
    (folder / "optiq_lora_config.json").unlink()
    assert read(folder).layers[Q0].is_transposed


def test_layers_may_have_ranks_of_their_own_where_the_settings_say_so(tmp_path: Path) -> None:
    ranks = {target.module: 2 if "layers.0" in target.module else 6 for target in CHOSEN}
    mixed = factors(CHOSEN, ranks)
    own = write_adapter(
        tmp_path / "own", named(mixed, "mlx"), settings_of("mlx", 6), settings_file="optiq_lora_config.json"
    )
    assert {module: layer.rank for module, layer in read(own).layers.items()} == ranks
    pattern = {"rank_pattern": {f"layers.0.self_attn.{name}": 2 for name in ATTENTION}}
    peft = read(write(tmp_path / "peft", "peft", named(mixed, "peft"), rank=6, lora_alpha=12, **pattern))
    assert {layer.scale for layer in peft.layers.values()} == {6.0, 2.0}
    message = refusal(write(tmp_path / "plain", tensors=named(mixed, "mlx"), rank=6))
    assert message == f"adapters.safetensors: {Q0}: has rank 2, and adapter_config.json says 6"


@pytest.mark.parametrize("rank", [1, 8])
def test_another_rank_than_the_settings_say_is_refused(tmp_path: Path, rank: int) -> None:
    for layout in ("mlx", "peft"):
        assert f"has rank 4, and adapter_config.json says {rank}" in refusal(
            write(tmp_path / layout, layout, rank=rank)
        )


def test_a_missing_half_is_refused(tmp_path: Path) -> None:
    for side, missing in (("a", "lora_a"), ("b", "lora_b")):
        tensors = named(MATRICES, "mlx")
        del tensors[f"{Q0}.{missing}"]
        assert f"has no {missing} beside it" in refusal(write(tmp_path / side, tensors=tensors))


@pytest.mark.parametrize("shape", [(65, 4), (5, 2), (64, 4, 1), (64,), (64, 0)])
def test_a_wrong_shape_is_refused_and_both_are_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {**named(MATRICES, "mlx"), f"{Q0}.lora_a": np.zeros(shape, np.float32)}
    message = refusal(write(tmp_path / "a", tensors=tensors))
    assert f"lora_a {list(shape)} and lora_b [4, 64] do not fit a layer of 64 inputs and 64 outputs" in message
    assert Q0 in message


def test_ranks_that_differ_between_the_halves_are_refused(tmp_path: Path) -> None:
    tensors = {**named(MATRICES, "mlx"), f"{Q0}.lora_a": np.zeros((64, 5), np.float32)}
    assert "lora_a [64, 5] and lora_b [4, 64]" in refusal(write(tmp_path / "a", tensors=tensors))


def test_an_adapter_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    renamed = {name.replace("model.layers", "transformer.h"): x for name, x in named(MATRICES, "mlx").items()}
    assert "which is no layer of this model" in refusal(write(tmp_path / "a", tensors=renamed))
    nothing = refusal(write(tmp_path / "b", tensors={}))
    assert "has no tensor for any layer of this model" in nothing
    others = write(tmp_path / "c", "peft", target_modules=["up_proj"])
    assert "has no tensor for any layer of this model" in refusal(others)


def test_a_tensor_that_is_no_half_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("lora_typo", f"{Q0}.lora_typo", f"{Q0}.lora_c.weight", f"{Q0}.lora_a.default")):
        tensors = {**named(MATRICES, "mlx"), name: np.zeros((64, 4), np.float32)}
        message = refusal(write(tmp_path / str(number), tensors=tensors, lora_parameters={"keys": list(ATTENTION)}))
        assert message == f"adapters.safetensors: {name}: is no half of a LoRA matrix"


def test_a_part_that_does_not_match_is_refused_unless_the_adapter_does_not_target_it(tmp_path: Path) -> None:
    extra = {"lm_head": (np.ones((64, 4), np.float32), np.ones((4, 300), np.float32))}
    tensors = named({**MATRICES, **extra}, "mlx")
    assert "lm_head" in refusal(write(tmp_path / "silent", tensors=tensors))
    both = [*ATTENTION, "lm_head"]
    assert "lm_head" in refusal(write(tmp_path / "targeted", tensors=tensors, lora_parameters={"keys": both}))
    adapter = read(write(tmp_path / "left", tensors=tensors, lora_parameters={"keys": list(ATTENTION)}))
    assert (set(adapter.layers), adapter.num_skipped) == (set(MATRICES), 2)


@pytest.mark.parametrize(
    "module", ["mlp.switch_mlp.gate_proj", "mlp.experts.3.up_proj", "experts.switch_glu.down_proj"]
)
def test_routed_experts_are_refused_by_name(tmp_path: Path, module: str) -> None:
    extra = {f"model.layers.0.{module}": (np.ones((64, 4), np.float32), np.ones((4, 32), np.float32))}
    message = refusal(write(tmp_path / "a", tensors=named({**MATRICES, **extra}, "mlx")))
    assert message.endswith(f"is for model.layers.0.{module}, and routed experts take no adapters")


def test_what_the_adapter_does_not_target_is_left_out_and_counted(tmp_path: Path) -> None:
    adapter = read(write(tmp_path / "a", "peft", target_modules=["q_proj"]))
    assert {module.rpartition(".")[2] for module in adapter.layers} == {"q_proj"}
    assert adapter.num_skipped == 4


@pytest.mark.parametrize("targets", ["all-linear", r".*\.(q|v)_proj", None])
def test_targets_that_are_no_list_mean_all(tmp_path: Path, targets: str | None) -> None:
    assert len(read(write(tmp_path / "a", "peft", target_modules=targets)).layers) == len(MATRICES)


def test_the_same_matrix_twice_is_refused(tmp_path: Path) -> None:
    tensors = named(MATRICES, "mlx") | {f"base_model.model.{Q0}.lora_A.weight": MATRICES[Q0][0].T.copy()}
    assert "is there twice" in refusal(write(tmp_path / "a", tensors=tensors))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_no_number_is_refused(tmp_path: Path, dtype: str, value: float) -> None:
    tensors = named(MATRICES, "mlx")
    tensors[f"{Q0}.lora_b"] = np.full((4, 64), value, np.float32)
    folder = write_adapter(tmp_path / "a", tensors, settings_of("mlx"), dtype=dtype)
    assert refusal(folder) == f"adapters.safetensors: {Q0}.lora_b: holds what is no number"


def test_whole_numbers_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = write(tmp_path / "a")
    save_file({f"{Q0}.lora_a": np.ones((64, 4), np.int32)}, folder / "adapters.safetensors")
    assert "is of I32 and not of floats" in refusal(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterMissing):
        read(tmp_path / "nowhere")
    assert "has neither optiq_lora_config.json nor adapter_config.json" in refusal(
        write_adapter(tmp_path / "a", named(MATRICES, "mlx"), None)
    )
    (tmp_path / "b").mkdir()
    assert "has neither adapters.safetensors nor adapter_model.safetensors" in refusal(tmp_path / "b")
    (tmp_path / "b" / "adapter_model.bin").write_bytes(b"pickle")
    assert "adapter_model.bin: is not safetensors" in refusal(tmp_path / "b")


def test_a_spoilt_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    weights = folder / "adapters.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert "lies outside the file" in refusal(folder)
    weights.write_bytes(b"no header")
    assert "truncated" in refusal(folder)
    (folder / "adapter_config.json").write_text("[1]")
    assert "is not a JSON object" in refusal(folder)


def test_a_file_that_is_changed_between_check_and_reading_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    header = open_adapter(folder, TARGETS)
    write(tmp_path / "a", tensors=named(factors(CHOSEN, 8), "mlx"), rank=8)
    with pytest.raises(AdapterRejected, match=r"is larger than|has changed while it was read"):
        header.read()


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "adapters.safetensors").symlink_to(outside / "adapters.safetensors")
    assert "is a link that leads outside" in refusal(folder)
