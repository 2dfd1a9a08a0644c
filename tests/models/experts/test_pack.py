"""Opening a pack: what is in it, and every way in which it can be wrong."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.folder import INDEX_FILE
from models.checkpoint.raw_numbers import read_raw_numbers
from models.experts.pack import PACK_FILE, PAGE_BYTES, REMEDY, Pack, find_pack, open_pack, read_pack, write_header

from .folders import checkpoint_of, packed, plan_of, stacked, write_experts

NAME = "model.layers.1.mlp.switch_mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a pack."""
    packed(write_experts(tmp_path / "tiny"))
    return tmp_path / "tiny"


def reopened(folder: Path) -> Pack:
    return open_pack(folder, plan_of(folder).tensors)


def refusal(call: Callable[[], object]) -> tuple[type[CheckpointError], str]:
    with pytest.raises(CheckpointError) as caught:
        call()
    assert caught.value.file == PACK_FILE
    return type(caught.value), caught.value.problem


def change(path: Path, offset: int) -> None:
    """Flip a bit, and leave the time of change as it was."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_every_tensor_begins_on_a_page_behind_the_files_own(folder: Path) -> None:
    offsets = [entry.offset for entry in reopened(folder).entries.values()]
    assert offsets == sorted(offsets)
    assert offsets[0] == PAGE_BYTES
    assert not any(offset % PAGE_BYTES for offset in offsets)


def test_a_checkpoint_with_a_pack_reads_its_experts_there(folder: Path) -> None:
    checkpoint = checkpoint_of(folder)
    applied = reopened(folder).applied(checkpoint)
    info = applied.tensors[NAME]
    assert (info.file, info.is_raw) == (folder / PACK_FILE, True)
    assert np.array_equal(read_raw_numbers(info), stacked()[NAME])
    assert applied.tensors["model.norm.weight"] == checkpoint.tensors["model.norm.weight"]
    assert set(applied.tensors) == set(checkpoint.tensors)


def test_the_weight_files_still_speak_for_a_checkpoint_with_a_pack(tmp_path: Path) -> None:
    folder = write_experts(tmp_path / "single", files=1)
    assert packed(folder).applied(checkpoint_of(folder)).weights_file == "model.safetensors"


def test_a_folder_without_a_pack_has_none(tmp_path: Path) -> None:
    assert find_pack(checkpoint_of(write_experts(tmp_path / "tiny"))) is None


def test_a_pack_is_found_beside_its_checkpoint(folder: Path) -> None:
    pack = find_pack(checkpoint_of(folder))
    assert pack is not None
    assert pack.nbytes == sum(array.nbytes for name, array in stacked().items() if name != "model.norm.weight")


@pytest.mark.parametrize("offset", [0, 8, 40, 80, 5000, PAGE_BYTES - 1])
def test_a_flipped_bit_of_the_header_is_noticed(folder: Path, offset: int) -> None:
    change(folder / PACK_FILE, offset)
    kind, problem = refusal(lambda: reopened(folder))
    assert kind is CheckpointCorrupt
    words, remedy = problem.split("; ")
    assert words in ("is no pack of experts", "has a header that is not the one that was written")
    assert remedy == REMEDY


def test_a_flipped_bit_anywhere_in_the_manifest_is_noticed(folder: Path) -> None:
    path = folder / PACK_FILE
    begin, end = path.read_bytes().index(b'{"format"'), path.stat().st_size
    for offset in {begin, end - 1, *range(begin, end, 97)}:
        change(path, offset)
        expected = CheckpointCorrupt, f"has a manifest that is not the one that was written; {REMEDY}"
        assert refusal(lambda: reopened(folder)) == expected
        change(path, offset)
    reopened(folder)


@pytest.mark.parametrize("left", [0, 7, 100, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES + 5, -1])
def test_a_truncated_file_is_refused(folder: Path, left: int) -> None:
    path = folder / PACK_FILE
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    kind, problem = refusal(lambda: reopened(folder))
    assert kind is CheckpointCorrupt
    assert problem.startswith("is truncated" if left not in (0, 7) else "is ")


def test_a_longer_file_is_refused(folder: Path) -> None:
    with (folder / PACK_FILE).open("ab") as file:
        file.write(b"\0")
    assert "is longer than it was written" in refusal(lambda: reopened(folder))[1]


def test_a_flipped_bit_of_a_tensor_is_found_by_reading_all(folder: Path) -> None:
    pack = reopened(folder)
    pack.check_data(lambda _done, _total: None)
    change(folder / PACK_FILE, pack.entries[NAME].offset + 3)
    with pytest.raises(CheckpointCorrupt, match="has other bytes than were written") as caught:
        reopened(folder).check_data(lambda _done, _total: None)
    assert caught.value.key == NAME


def test_a_pack_of_a_later_format_is_refused_with_the_remedy(folder: Path) -> None:
    path = folder / PACK_FILE
    content = path.read_bytes()
    begin = content.index(b'{"format"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.experts.pack.FORMAT", 2)
        header = write_header(content[begin:], begin)
    path.write_bytes(header + content[PAGE_BYTES:])
    kind, problem = refusal(lambda: reopened(folder))
    assert kind is CheckpointRejected
    assert "format 2" in problem
    assert "pomona pack-experts" in problem


def rewrite(path: Path, name: str, *, keep_time: bool) -> None:
    """Write other values into a weight file, of the same size."""
    stat = path.stat()
    arrays = load_file(path)
    arrays[name] = arrays[name] + 1
    save_file(arrays, path)
    moment = stat.st_mtime_ns if keep_time else stat.st_mtime_ns + 1
    os.utime(path, ns=(stat.st_atime_ns, moment))


def shard_of(folder: Path, name: str) -> Path:
    return next(path for path in folder.glob("*.safetensors") if name in load_file(path))


@pytest.mark.parametrize("keep_time", [True, False])
def test_weights_that_changed_in_place_are_noticed(folder: Path, *, keep_time: bool) -> None:
    path = shard_of(folder, NAME)
    rewrite(path, NAME, keep_time=keep_time)
    kind, problem = refusal(lambda: reopened(folder))
    assert kind is CheckpointRejected
    assert problem == f"was made of other weights: {path.name} holds other weights; pomona pack-experts makes it anew"


def test_a_file_that_was_only_touched_is_noticed(folder: Path) -> None:
    path = shard_of(folder, NAME)
    os.utime(path, ns=(0, 0))
    assert f"{path.name} was changed" in refusal(lambda: reopened(folder))[1]


def test_a_file_of_another_size_is_noticed(folder: Path) -> None:
    path = shard_of(folder, NAME)
    arrays = load_file(path)
    save_file({**arrays, "model.layers.0.extra": np.ones(9, np.float32)}, path)
    (folder / INDEX_FILE).unlink()  # which no longer fits
    tensors = plan_of(folder).tensors
    assert f"{path.name} has another size" in refusal(lambda: open_pack(folder, tensors))[1]


def test_a_pack_of_other_tensors_is_not_applied(folder: Path, tmp_path: Path) -> None:
    other = checkpoint_of(write_experts(tmp_path / "other", files=1))
    tensors = {name: info for name, info in other.tensors.items() if name != NAME}
    pack = read_pack(folder / PACK_FILE)
    with pytest.raises(CheckpointCorrupt, match="is no tensor of this checkpoint") as caught:
        pack.applied(replace(other, tensors=tensors))
    assert caught.value.key == NAME


def test_a_pack_that_was_replaced_after_it_was_opened_is_noticed(folder: Path) -> None:
    pack = reopened(folder)
    content = pack.file.read_bytes()
    pack.check_unchanged()
    pack.file.unlink()
    pack.file.write_bytes(content)
    assert refusal(pack.check_unchanged) == (CheckpointCorrupt, "was changed while it was read")


def test_a_link_that_leaves_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / PACK_FILE).rename(tmp_path / "elsewhere")
    (folder / PACK_FILE).symlink_to(tmp_path / "elsewhere")
    assert refusal(lambda: reopened(folder))[0] is CheckpointRejected
