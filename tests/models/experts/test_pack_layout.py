"""What a pack holds of each layout in which experts are stored."""

from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.folder import read_folder_tensors
from models.experts.pack_layout import pack_tensors

from .folders import EXPERTS, KINDS, packed, plain, stacked, values, write, write_experts

QWEN, GEMMA = "model.layers.0.mlp.switch_mlp", "model.layers.0.experts.switch_glu"


def test_stacks_stand_as_they_are_stored(tmp_path: Path) -> None:
    pack = packed(write_experts(tmp_path / "tiny"))
    expected = {name: array for name, array in stacked().items() if "switch_mlp" in name}
    assert set(pack.entries) == set(expected)
    assert all(values(pack, name) == array.tobytes() for name, array in expected.items())
    assert all(entry.parts == (name,) for name, entry in pack.entries.items())


@pytest.mark.parametrize(("outer", "module"), [("model.layers.0.mlp", QWEN), ("model.layers.0", GEMMA)])
def test_fused_tensors_become_the_stacks_that_they_are_made_of(tmp_path: Path, outer: str, module: str) -> None:
    stacks = plain()
    both = np.concatenate([stacks["gate_proj"], stacks["up_proj"]], axis=1)
    arrays = {f"{outer}.experts.gate_up_proj": both, f"{outer}.experts.down_proj": stacks["down_proj"]}
    pack = packed(write(tmp_path / "tiny", arrays))
    assert list(pack.entries) == [f"{module}.{kind}.weight" for kind in sorted(KINDS)]
    assert all(values(pack, f"{module}.{kind}.weight") == stack.tobytes() for kind, stack in stacks.items())
    assert all(pack.entries[f"{module}.{kind}.weight"].shape == stack.shape for kind, stack in stacks.items())


def test_tensors_of_each_expert_become_stacks(tmp_path: Path) -> None:
    stacks = plain()
    outer = "model.layers.0.mlp.experts"
    arrays = {f"{outer}.{i}.{kind}.weight": stack[i] for kind, stack in stacks.items() for i in range(EXPERTS)}
    pack = packed(write(tmp_path / "tiny", arrays, files=2))
    assert all(values(pack, f"{QWEN}.{kind}.weight") == stack.tobytes() for kind, stack in stacks.items())
    assert pack.entries[f"{QWEN}.up_proj.weight"].parts == tuple(f"{outer}.{i}.up_proj.weight" for i in range(EXPERTS))


def test_experts_of_which_one_lacks_stay_single(tmp_path: Path) -> None:
    outer = "model.layers.0.mlp.experts"
    arrays = {f"{outer}.{i}.up_proj.weight": np.ones((2, 2), np.float32) for i in (0, 2)}
    tensors, _ = read_folder_tensors(write(tmp_path / "tiny", arrays))
    assert [tensor.name for tensor in pack_tensors(tensors)] == list(arrays)


def test_layers_and_experts_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.mlp.experts.{i}.w" for layer in (2, 10) for i in (1, 9, 11)]
    arrays = {name: np.ones(1, np.float32) for name in reversed(names)}
    tensors, _ = read_folder_tensors(write(tmp_path / "tiny", arrays))
    assert [tensor.name for tensor in pack_tensors(tensors)] == names


def test_only_routed_experts_are_packed(tmp_path: Path) -> None:
    ones = np.ones((2, 2), np.float32)
    routed, shared = "model.layers.0.mlp.experts.0.x", "model.layers.0.mlp.shared_experts.up_proj.weight"
    tensors, _ = read_folder_tensors(write(tmp_path / "tiny", {routed: ones, shared: ones, "model.norm.weight": ones}))
    assert [tensor.name for tensor in pack_tensors(tensors)] == [routed]
