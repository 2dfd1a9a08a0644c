"""Tensors as arrays, file by file: what is read when, what is held how long, and what fails how."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from models.checkpoint.shards import Shards
from tests.support.tiny_models import write_llama, write_tensors

UP = "model.layers.0.mlp.up_proj.weight"
NUM_SHARDS = 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_llama(tmp_path / "tiny", num_shards=NUM_SHARDS))


def by_file(checkpoint: Checkpoint) -> dict[Path, list[str]]:
    names: dict[Path, list[str]] = {}
    for name, info in checkpoint.tensors.items():
        names.setdefault(info.file, []).append(name)
    return names


def values_of(checkpoint: Checkpoint, name: str) -> mx.array:
    loaded: Any = mx.load(str(checkpoint.tensors[name].file))
    return loaded[checkpoint.tensors[name].stored_name]


def refusal(call: Callable[[], object]) -> tuple[type[CheckpointError], str, str, str]:
    with pytest.raises(CheckpointError) as caught:
        call()
    return type(caught.value), caught.value.file, caught.value.key, caught.value.problem


def test_a_file_is_opened_when_the_first_of_its_tensors_is_asked_for(checkpoint: Checkpoint) -> None:
    shards = Shards(checkpoint)
    assert shards.open_files == frozenset()
    array = shards.array(UP)
    assert shards.open_files == {checkpoint.tensors[UP].file}
    assert mx.array_equal(array, values_of(checkpoint, UP))
    assert shards.array(UP) is array


def test_a_tensor_that_was_released_is_read_again(checkpoint: Checkpoint) -> None:
    shards = Shards(checkpoint)
    first = shards.array(UP)
    shards.release(UP)
    second = shards.array(UP)
    assert second is not first
    assert mx.array_equal(first, second)
    shards.release("model.norm.weight")  # nobody has asked for it


def test_a_file_that_was_released_is_opened_again(checkpoint: Checkpoint) -> None:
    shards = Shards(checkpoint)
    file, other = by_file(checkpoint)[checkpoint.tensors[UP].file], "lm_head.weight"
    arrays = {name: shards.array(name) for name in [*file, other]}
    shards.release_shard(checkpoint.tensors[UP].file)
    assert shards.open_files == {checkpoint.tensors[other].file}
    assert shards.array(other) is arrays[other]
    assert mx.array_equal(shards.array(UP), arrays[UP])
    assert len(shards.open_files) == 2
    shards.release_shard(Path("none.safetensors"))


def test_every_header_is_checked_before_mlx_opens_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_llama(tmp_path / "tiny", num_shards=NUM_SHARDS)
    last = max(folder.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    monkeypatch.delattr(mx, "load")
    assert refusal(lambda: open_checkpoint(folder))[:2] == (CheckpointCorrupt, last.name)


def test_a_file_that_cannot_be_opened_leaves_none_open(checkpoint: Checkpoint) -> None:
    shards, files = Shards(checkpoint), by_file(checkpoint)
    *others, last = files
    for file in others:
        shards.array(files[file][0])
    assert len(shards.open_files) == NUM_SHARDS - 1
    last.unlink()
    assert refusal(lambda: shards.array(files[last][0])) == (CheckpointMissing, last.name, "", "is not there")
    assert shards.open_files == frozenset()


def test_a_file_that_became_another_is_named_when_it_is_opened_again(checkpoint: Checkpoint) -> None:
    shards, file = Shards(checkpoint), checkpoint.tensors[UP].file
    stored = {name: values_of(checkpoint, name) for name in by_file(checkpoint)[file]}
    mx.eval(stored)
    shards.array(UP)
    shards.release_shard(file)
    mx.save_safetensors(str(file), {**stored, UP: stored[UP].astype(mx.float16)})
    error, name, key, problem = refusal(lambda: shards.array(UP))
    assert (error, name, problem) == (CheckpointCorrupt, file.name, "is no longer what its header said")
    assert key in stored


def test_a_tensor_that_is_not_there_is_named(checkpoint: Checkpoint) -> None:
    expected = (CheckpointCorrupt, "model.safetensors.index.json", "model.layers.9.x", "is missing")
    assert refusal(lambda: Shards(checkpoint).array("model.layers.9.x")) == expected


@pytest.mark.parametrize(
    ("loaded", "key", "problem"),
    [
        ({}, UP, "is not what its header says"),
        ({UP: mx.ones((2, 2))}, UP, "is not what its header says"),
        (mx.ones(3), "", "holds no named tensors"),
    ],
)
def test_what_mlx_reads_otherwise_than_its_header_says_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: object, key: str, problem: str
) -> None:
    folder = write_llama(tmp_path / "tiny")
    stored: Any = mx.load(str(folder / "model.safetensors"))
    only = {UP: stored[UP]}
    mx.eval(only)
    write_tensors(folder, only)
    shards = Shards(open_checkpoint(folder))
    monkeypatch.setattr(mx, "load", lambda *_arguments, **_options: loaded)
    assert refusal(lambda: shards.array(UP)) == (CheckpointCorrupt, "model.safetensors", key, problem)


def test_what_mlx_cannot_open_is_named(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("[load_safetensors] Invalid json header length /secret/folder")

    monkeypatch.setattr(mx, "load", fail)
    name = checkpoint.tensors[UP].file.name
    assert refusal(lambda: Shards(checkpoint).array(UP)) == (CheckpointCorrupt, name, "", "cannot be read")


# A shard is some times larger than what a process allocates beside it.
SHARD_MIB, NUM_LARGE_SHARDS, TENSORS_A_SHARD = 24, 6, 3
CHILD = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.shards import Shards

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says there may be of the parent
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line) >> 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20

releases = sys.argv[2] == "release"
mx.set_default_device(mx.cpu)
checkpoint = open_checkpoint(Path(sys.argv[1]))
shards, total, names = Shards(checkpoint), 0.0, {}
for name, info in checkpoint.tensors.items():
    names.setdefault(info.file, []).append(name)
mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
mx.reset_peak_memory()
before = peak()
for file, of_file in names.items():
    for name in of_file:
        total += float(mx.max(shards.array(name)).item())
    if releases:
        shards.release_shard(file)
print(total, mx.get_peak_memory() >> 20, peak() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("large") / "tiny")
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    rows = (SHARD_MIB << 20) // TENSORS_A_SHARD // 4 // 1024
    for shard in range(NUM_LARGE_SHARDS):
        file = f"model-{shard}.safetensors"
        tensors = {f"t{shard}.{part}": mx.full((rows, 1024), shard + 1.0) for part in range(TENSORS_A_SHARD)}
        mx.save_safetensors(str(folder / file), tensors)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def streamed(folder: Path, way: str) -> tuple[float, int, int]:
    """Go through a model in another process; return the sum of what was read, and two peaks in MiB."""
    command = [sys.executable, "-c", CHILD, str(folder), way]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    total, of_mlx, of_process = ended.stdout.split()
    return float(total), int(of_mlx), int(of_process)


def test_streaming_holds_at_most_one_file(large: Path) -> None:
    total, of_mlx, of_process = streamed(large, "release")
    assert total == TENSORS_A_SHARD * sum(range(1, NUM_LARGE_SHARDS + 1))
    assert of_mlx <= SHARD_MIB + 1
    assert of_process < 1.5 * SHARD_MIB


def test_streaming_without_release_is_seen_to_hold_all(large: Path) -> None:
    _, of_mlx, of_process = streamed(large, "keep")
    assert of_mlx >= SHARD_MIB * NUM_LARGE_SHARDS
    assert of_process > SHARD_MIB * (NUM_LARGE_SHARDS - 1)


def test_values_survive_the_release_of_their_file(checkpoint: Checkpoint) -> None:
    shards = Shards(checkpoint)
    doubled = 2 * shards.array(UP)
    shards.release_shard(checkpoint.tensors[UP].file)
    assert np.array_equal(np.array(doubled), 2 * np.array(values_of(checkpoint, UP)))
