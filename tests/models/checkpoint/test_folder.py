"""Finding the tensors of a folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.folder import INDEX_FILE, read_folder_tensors

ONE = {"model.norm.weight": np.ones(4, np.float32)}
TWO = {"lm_head.weight": np.ones((2, 4), np.float32)}


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors", "model-special.safetensors"])
def test_reads_a_single_file_under_each_name(tmp_path: Path, name: str) -> None:
    save_file(ONE, tmp_path / name)
    tensors, _ = read_folder_tensors(tmp_path)
    assert tensors["model.norm.weight"].file.name == name


def test_the_index_goes_before_a_single_file(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "model.safetensors")
    save_file(TWO, tmp_path / "x.safetensors")
    write_index(tmp_path, {"lm_head.weight": "x.safetensors"})
    assert list(read_folder_tensors(tmp_path)[0]) == ["lm_head.weight"]


def test_joins_files_that_no_index_lists(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "model-1.safetensors")
    save_file(TWO, tmp_path / "model-2.safetensors")
    assert set(read_folder_tensors(tmp_path)[0]) == {*ONE, *TWO}


def test_refuses_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "model-1.safetensors")
    save_file(ONE, tmp_path / "model-2.safetensors")
    with pytest.raises(CheckpointCorrupt, match="twice"):
        read_folder_tensors(tmp_path)


def test_refuses_two_spellings_of_one_canonical_name(tmp_path: Path) -> None:
    save_file({**ONE, "language_model.model.norm.weight": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointCorrupt, match="twice"):
        read_folder_tensors(tmp_path)


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("vision_tower.layers.0.weight", "vision_tower.layers.0.weight"),
    ],
)
def test_gives_canonical_names_and_keeps_the_stored_ones(tmp_path: Path, stored: str, canonical: str) -> None:
    save_file({stored: np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    tensors, _ = read_folder_tensors(tmp_path)
    assert [(tensor.name, tensor.stored_name) for tensor in tensors.values()] == [(canonical, stored)]


def test_leaves_out_the_table_that_old_checkpoints_store(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file({**ONE, **extra}, tmp_path / "model.safetensors")
    assert set(read_folder_tensors(tmp_path)[0]) == set(ONE)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "a\\b.safetensors", "..", ""])
def test_refuses_an_index_that_names_a_file_elsewhere(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(ONE, tmp_path / "x.safetensors")
    write_index(folder, {"model.norm.weight": file})
    with pytest.raises(CheckpointRejected) as caught:
        read_folder_tensors(folder)
    assert caught.value.file == INDEX_FILE


def test_refuses_a_link_that_leads_outside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(ONE, tmp_path / "x.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointRejected, match="outside"):
        read_folder_tensors(folder)


def test_follows_the_links_of_a_download_cache(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(ONE, blobs / "123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert set(read_folder_tensors(snapshot)[0]) == set(ONE)


def test_refuses_an_index_that_names_a_pickle(tmp_path: Path) -> None:
    write_index(tmp_path, {"model.norm.weight": "pytorch_model.bin"})
    with pytest.raises(CheckpointRejected, match="not safetensors"):
        read_folder_tensors(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"model.norm.weight": 3}])
def test_refuses_an_index_without_a_usable_map(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointCorrupt):
        read_folder_tensors(tmp_path)


def test_names_a_listed_tensor_that_is_not_in_its_shard(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "x.safetensors")
    write_index(tmp_path, {"model.norm.weight": "x.safetensors", "lm_head.weight": "x.safetensors"})
    with pytest.raises(CheckpointCorrupt) as caught:
        read_folder_tensors(tmp_path)
    assert (caught.value.file, caught.value.key) == ("x.safetensors", "lm_head.weight")


def test_names_a_stored_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    save_file({**ONE, **TWO}, tmp_path / "x.safetensors")
    write_index(tmp_path, {"model.norm.weight": "x.safetensors"})
    with pytest.raises(CheckpointCorrupt, match=r"lm_head.weight: is not listed"):
        read_folder_tensors(tmp_path)


def test_names_a_listed_shard_that_is_not_there(tmp_path: Path) -> None:
    write_index(tmp_path, {"model.norm.weight": "x.safetensors"})
    with pytest.raises(CheckpointMissing) as caught:
        read_folder_tensors(tmp_path)
    assert caught.value.file == "x.safetensors"


def test_says_that_there_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing) as caught:
        read_folder_tensors(tmp_path)
    assert caught.value.file == "model.safetensors"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("pytorch_model.bin", b"PK\x03\x04rest", "a zipped pickle"),
        ("model.pt", b"\x80\x02rest", "a pickle"),
        ("weights.npy", b"\x93NUMPYrest", "a NumPy array"),
        ("model.ckpt", b"", "no safetensors"),
    ],
)
def test_refuses_weights_that_may_run_code(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointRejected, match=words) as caught:
        read_folder_tensors(tmp_path)
    assert caught.value.file == name


def test_refuses_a_pickle_that_calls_itself_safetensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u.")
    with pytest.raises(CheckpointCorrupt):
        read_folder_tensors(tmp_path)


def test_never_reads_fp8_data_as_something_else(tmp_path: Path) -> None:
    header = json.dumps({"a.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointRejected, match="F8_E4M3"):
        read_folder_tensors(tmp_path)
