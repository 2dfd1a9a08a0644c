"""Writing packs: what is said first, what is kept, who waits for whom, and what a builder that ends early leaves."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.experts import pack_builder
from models.experts.errors import PackBusy, PackDiskFull, PackUnwritable
from models.experts.pack import PACK_FILE, open_pack
from models.experts.pack_builder import PARTIAL_FILE, PackPlan, build_pack, remove_pack

from .folders import ignore_phase, packed, plan_of, write, write_experts

NAME = "model.layers.1.mlp.switch_mlp.up_proj.weight"
NUM_KILLS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experts(tmp_path / "tiny")


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(PACK_FILE)}


def test_a_plan_says_no_less_than_the_pack_takes(folder: Path) -> None:
    plan = plan_of(folder)
    size = packed(folder).file.stat().st_size
    assert size <= plan.needed_bytes < 3 * size
    assert plan.free_bytes > 0
    assert plan.path == folder / PACK_FILE


def test_a_plan_for_experts_that_are_put_together_says_enough(tmp_path: Path) -> None:
    ones = np.ones((1, 1), np.float32)
    outer = "model.layers.0.mlp.experts"
    plan = plan_of(write(tmp_path / "each", {f"{outer}.{i}.up_proj.weight": ones for i in range(500)}))
    assert build_pack(plan, ignore_phase).pack.file.stat().st_size <= plan.needed_bytes


def test_without_experts_there_is_nothing_to_pack(tmp_path: Path) -> None:
    folder = write(tmp_path / "dense", {"model.norm.weight": np.ones(3, np.float32)})
    with pytest.raises(CheckpointRejected, match="has no routed experts"):
        plan_of(folder)


def test_progress_counts_every_byte(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = plan_of(folder)
    build_pack(plan, lambda *report: told.append(report))
    assert [phase for phase, _, _ in told if phase != "packing"] == ["checking", "syncing"]
    counts = [done for phase, done, _ in told if phase == "packing"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, plan.nbytes)


def test_a_pack_that_fits_is_kept(folder: Path) -> None:
    first = packed(folder)
    second = build_pack(plan_of(folder), ignore_phase)
    assert (second.is_new, second.why) == (False, "")
    assert second.pack.identity == first.identity
    assert left_in(folder) == {PACK_FILE}


def test_a_pack_that_does_not_fit_is_written_anew_and_it_is_said_why(folder: Path) -> None:
    first = packed(folder)
    path = next(path for path in folder.glob("*.safetensors") if NAME in load_file(path))
    save_file({**load_file(path), NAME: np.zeros_like(load_file(path)[NAME])}, path)
    second = build_pack(plan_of(folder), ignore_phase)
    assert second.is_new
    assert f"was made of other weights: {path.name} holds other weights" in second.why
    assert second.pack.entries[NAME].digest != first.entries[NAME].digest
    assert open_pack(folder, plan_of(folder).tensors) == second.pack


def test_a_spoilt_pack_is_written_anew(folder: Path) -> None:
    os.truncate(packed(folder).file, 5)
    assert "is no pack" in build_pack(plan_of(folder), ignore_phase).why


def test_a_pack_is_written_anew_as_asked(folder: Path) -> None:
    first = packed(folder)
    second = build_pack(plan_of(folder), ignore_phase, force=True)
    assert second.is_new
    assert second.pack.identity.inode != first.identity.inode


def test_a_disk_without_room_is_told_before_anything_is_written(folder: Path) -> None:
    for free in (10, 0):
        plan = replace(plan_of(folder), free_bytes=free)
        with pytest.raises(PackDiskFull, match=r"and 0\.00 GB are free") as caught:
            build_pack(plan, ignore_phase)
        assert (caught.value.needed_bytes, caught.value.free_bytes) == (plan.needed_bytes, free)
        assert left_in(folder) == set()


def test_a_disk_that_becomes_full_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packed(folder).identity

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(pack_builder.os, "fsync", full)
    with pytest.raises(PackDiskFull, match="the disk became full"):
        build_pack(plan_of(folder), ignore_phase, force=True)
    assert left_in(folder) == {PACK_FILE}
    assert open_pack(folder, plan_of(folder).tensors).identity == before


def test_a_folder_that_cannot_be_written_keeps_a_pack_that_fits_and_is_told_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, system_open = packed(folder), os.open

    def refused(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "refused", str(folder))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(pack_builder.os, "open", refused)
    again = build_pack(plan_of(folder), ignore_phase)
    assert (again.pack.identity, again.is_new) == (kept.identity, False)
    with pytest.raises(PackUnwritable, match="cannot be written: Read-only file system"):
        build_pack(plan_of(folder), ignore_phase, force=True)
    os.utime(folder / "model-0.safetensors")
    with pytest.raises(PackUnwritable, match="cannot be written: Read-only file system"):
        build_pack(plan_of(folder), ignore_phase)


def test_a_folder_that_cannot_be_written_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_open = os.open

    def refused(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "refused", str(folder))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(pack_builder.os, "open", refused)
    with pytest.raises(PackUnwritable, match="cannot be written: Permission denied"):
        packed(folder)


def test_a_disk_that_fails_is_told_without_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_file: int) -> None:
        raise OSError(errno.EIO, "broken", str(folder))

    monkeypatch.setattr(pack_builder.os, "fsync", broken)
    with pytest.raises(PackUnwritable) as caught:
        packed(folder)
    assert str(folder) not in str(caught.value)


def test_a_weight_file_that_changes_meanwhile_is_noticed(folder: Path) -> None:
    def touch(phase: str, done: int, total: int) -> None:
        if phase == "packing" and done == total:
            os.utime(next(folder.glob("*.safetensors")), ns=(0, 0))

    with pytest.raises(CheckpointCorrupt, match="changed while it was packed"):
        build_pack(plan_of(folder), touch)
    assert left_in(folder) == set()


def test_of_two_builders_one_is_refused_and_one_file_is_made(folder: Path) -> None:
    refused: list[bool] = []

    def second(phase: str, _done: int, _total: int) -> None:
        if phase == "syncing":
            with pytest.raises(PackBusy):
                packed(folder)
            with pytest.raises(PackBusy):
                remove_pack(folder)
            refused.append(True)

    build_pack(plan_of(folder), second)
    assert refused == [True]
    assert left_in(folder) == {PACK_FILE}


def test_a_builder_that_locked_a_finished_file_begins_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the unfinished file and locking it, its holder finishes and gives it its name."""
    partial, tries = folder / PARTIAL_FILE, []
    lock = fcntl.flock

    def finish_first(file: int, operation: int) -> None:
        if not tries:
            partial.rename(folder / "finished")
        tries.append(file)
        lock(file, operation)

    monkeypatch.setattr(pack_builder.fcntl, "flock", finish_first)
    packed(folder)
    assert len(tries) == 2
    assert (folder / "finished").stat().st_size == 0


def test_what_a_killed_builder_left_is_taken_over(folder: Path) -> None:
    (folder / PARTIAL_FILE).write_bytes(b"rest" * 1_000_000)
    pack = packed(folder)
    assert left_in(folder) == {PACK_FILE}
    pack.check_data(lambda _done, _total: None)


def test_a_pack_is_removed_with_what_is_unfinished(folder: Path) -> None:
    size = packed(folder).file.stat().st_size
    (folder / PARTIAL_FILE).write_bytes(b"rest")
    assert remove_pack(folder) == size + 4
    assert left_in(folder) == set()
    assert remove_pack(folder) == 0


@pytest.mark.parametrize("leads_to", ["nowhere", "model-0.safetensors"])
def test_a_link_in_place_of_an_unfinished_pack_goes_and_what_it_leads_to_stays(folder: Path, leads_to: str) -> None:
    weights = (folder / "model-0.safetensors").read_bytes()
    (folder / PARTIAL_FILE).symlink_to(leads_to)
    assert remove_pack(folder) == len(leads_to)
    assert left_in(folder) == set()
    (folder / PARTIAL_FILE).symlink_to(leads_to)
    packed(folder).check_data(lambda _done, _total: None)
    assert left_in(folder) == {PACK_FILE}
    assert (folder / "model-0.safetensors").read_bytes() == weights


def test_a_builder_killed_at_any_moment_leaves_no_file_that_is_not_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((8, 256, 512), dtype=np.float32)
    arrays = {f"model.layers.{i}.mlp.switch_mlp.up_proj.weight": stack for i in range(4)}
    folder = write(tmp_path / "large", arrays)
    plan = plan_of(folder)
    for kill in range(NUM_KILLS):
        kill_a_builder(folder, 0.05 * kill)
        check_whole_or_none(folder, plan)
    packed(folder).check_data(lambda _done, _total: None)


def kill_a_builder(folder: Path, after_s: float) -> None:
    """Have a process build, and kill it so long after its first progress."""
    argv = (sys.executable, "-P", "-m", "worker", "pack", str(folder), '{"action": "rebuild"}')
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(after_s)
        child.kill()


def check_whole_or_none(folder: Path, plan: PackPlan) -> None:
    if plan.path.exists():
        open_pack(folder, plan.tensors).check_data(lambda _done, _total: None)
