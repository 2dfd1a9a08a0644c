"""The one-shot `pack`: what it prints, with which code it ends, and what it leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.experts.errors import PackDiskFull
from models.experts.pack import PACK_FILE
from models.experts.pack_builder import PackPlan
from tests.models.experts.folders import packed, write, write_experts
from worker import pack
from worker.long_one_shot import Progress

Answer = tuple[int, list[dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(folder: Path, *settings: str) -> Answer:
        code = pack.main([str(folder), *settings])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experts(tmp_path / "tiny")


def test_what_it_takes_is_said_before_anything_is_written(folder: Path, run: Callable[..., Answer]) -> None:
    code, lines = run(folder)
    plan = lines[0]["plan"]
    assert code == 0
    assert (plan["path"], plan["tensors"]) == (str(folder / PACK_FILE), 18)
    assert 0 < plan["bytesTotal"] < plan["neededBytes"] < plan["freeBytes"]
    assert [next(iter(line)) for line in lines[1:-1]] == ["progress"] * (len(lines) - 2)
    assert {line["progress"]["phase"] for line in lines[1:-1]} == {"checking", "packing", "syncing"}


def test_the_last_line_tells_the_pack(folder: Path, run: Callable[..., Answer]) -> None:
    code, lines = run(folder)
    told = lines[-1]["pack"]
    size = (folder / PACK_FILE).stat().st_size
    assert (code, told["isNew"], told["why"], told["fileBytes"]) == (0, True, "", size)


def test_a_pack_that_fits_is_kept(folder: Path, run: Callable[..., Answer]) -> None:
    packed(folder)
    assert [next(iter(line)) for line in run(folder)[1]] == ["plan", "pack"]
    assert run(folder)[1][-1]["pack"]["isNew"] is False
    assert run(folder, '{"action": "rebuild"}')[1][-1]["pack"]["isNew"] is True


def test_why_a_pack_is_written_anew_is_told(folder: Path, run: Callable[..., Answer]) -> None:
    os.utime(next(folder.glob("*.safetensors")), ns=(0, 0)) if packed(folder) else None
    lines = run(folder)[1]
    why = lines[-1]["pack"]["why"]
    assert ("was changed" in why, "pomona pack-experts" in why) == (True, False)
    assert [next(iter(line)) for line in lines][:3] == ["plan", "stale", "progress"]


def test_a_pack_is_checked_byte_by_byte(folder: Path, run: Callable[..., Answer]) -> None:
    made = packed(folder)
    assert run(folder, '{"action": "check"}')[0] == 0
    content = bytearray(made.file.read_bytes())
    content[next(iter(made.entries.values())).offset] ^= 1
    made.file.write_bytes(content)
    code, lines = run(folder, '{"action": "check"}')
    assert (code, lines[-1]["reason"]) == (3, "CHECKPOINT_CORRUPT")
    assert "has other bytes than were written" in lines[-1]["message"]


def test_a_pack_is_removed(folder: Path, run: Callable[..., Answer]) -> None:
    size = packed(folder).file.stat().st_size
    assert run(folder, '{"action": "remove"}') == (0, [{"pack": {"freedBytes": size}}])
    assert run(folder, '{"action": "remove"}') == (0, [{"pack": {"freedBytes": 0}}])


def test_a_model_without_experts_is_refused(tmp_path: Path, run: Callable[..., Answer]) -> None:
    folder = write(tmp_path / "dense", {"model.norm.weight": np.ones(3, np.float32)})
    code, lines = run(folder)
    assert (code, lines[-1]["reason"]) == (3, "CHECKPOINT_REJECTED")
    assert "has no routed experts" in lines[-1]["message"]


@pytest.mark.parametrize(("name", "words"), [("absent", "is not there"), ("file", "is no folder")])
def test_what_is_no_folder_is_refused(tmp_path: Path, run: Callable[..., Answer], name: str, words: str) -> None:
    (tmp_path / "file").write_bytes(b"GGUF")
    code, lines = run(tmp_path / name)
    assert (code, lines[-1]["reason"]) == (3, "CHECKPOINT_REJECTED")
    assert words in lines[-1]["message"]


def test_a_full_disk_is_told_with_both_sizes(
    folder: Path, run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(plan: PackPlan, *_: object, **__: object) -> None:
        raise PackDiskFull(plan.needed_bytes, 7)

    monkeypatch.setattr(pack, "build_pack", full)
    code, lines = run(folder)
    needed = str(lines[0]["plan"]["neededBytes"])
    assert (code, lines[-1]["reason"]) == (3, "DISK_FULL")
    assert lines[-1]["metadata"] == {"neededBytes": needed, "freeBytes": "7"}


@pytest.mark.parametrize("settings", ["{", "[]", '{"action": "eat"}', '{"action": 3}', '{"other": 1}'])
def test_settings_that_mean_nothing_are_wrong_usage(folder: Path, run: Callable[..., Answer], settings: str) -> None:
    assert run(folder, settings) == (2, [])


def test_progress_is_told_a_few_times_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    progress = Progress(lambda: now_s, "bytesDone", "bytesTotal")
    for done in range(65):
        now_s = done / 64
        progress("packing", done, 64)
    counts = [json.loads(line)["progress"]["bytesDone"] for line in capsys.readouterr().out.splitlines()]
    assert counts == [0, 13, 26, 39, 52, 64]


def test_neither_mlx_nor_the_extension_is_needed(folder: Path) -> None:
    code = (
        "import sys; sys.modules['mlx'] = None; sys.modules['native._native'] = None\n"
        f"from worker import pack; sys.exit(pack.main([{str(folder)!r}]))"
    )
    argv = [sys.executable, "-P", "-c", code]
    assert subprocess.run(argv, capture_output=True, check=False, timeout=30).returncode == 0


def test_asked_to_end_it_leaves_nothing_unfinished(folder: Path) -> None:
    code = (
        "import os, signal, sys; from models.experts import pack_builder\n"
        "pack_builder.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"from worker import pack; sys.exit(pack.main([{str(folder)!r}]))"
    )
    argv = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, json.loads(ended.stdout.splitlines()[-1])["reason"]) == (3, "PACK_FAILED")
    assert not list(folder.glob(f"{PACK_FILE}*"))
