"""`pack-experts`: what is said while a pack is written, and which model is meant."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.hub.cache import cached_models, remove
from tests.gateway.hub.test_cache import FIRST
from tests.gateway.hub.test_cache import write as write_repository
from tests.models.experts.folders import packed, write_experts

PACK = "experts.pack"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experts(tmp_path / "tiny")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pack-experts", *arguments], env={"NO_COLOR": "1"})


def test_the_disk_that_it_needs_is_said_first(folder: Path) -> None:
    result = run(str(folder))
    assert result.exit_code == 0, result.stderr
    first = result.stderr.splitlines()[0]
    assert first.startswith(f"{folder}: 18 tensors of experts; the pack needs ")
    assert first.endswith(" are free")
    assert result.stdout == f"{folder} is packed: 3.2 kB of experts in {folder / PACK}\n"


def test_where_a_pack_fits_nothing_is_written_and_nothing_is_said_of_the_disk(folder: Path) -> None:
    packed(folder)
    result = run(str(folder))
    assert (result.stderr, result.exit_code) == ("", 0)
    assert "has a pack that fits" in result.stdout


def test_why_a_pack_does_not_fit_is_said(folder: Path) -> None:
    (folder / PACK).write_bytes(b"nothing")
    told = run(str(folder)).stderr.splitlines()
    assert told[0] == f"{folder}: the one that is there is no pack of experts; it is made anew"
    assert "the pack needs" in told[1]


def test_a_pack_with_other_bytes_is_told_with_its_remedy(folder: Path) -> None:
    packed(folder)
    content = bytearray((folder / PACK).read_bytes())
    content[16384] ^= 1
    (folder / PACK).write_bytes(content)
    result = run(str(folder), "--check")
    assert (result.exit_code, "pomona pack-experts --force makes the pack anew" in result.stderr) == (1, True)
    (folder / PACK).write_bytes(content[:-1])
    result = run(str(folder), "--check")
    assert (result.exit_code, "; pomona pack-experts makes it anew" in result.stderr) == (1, True)


def test_programs_get_a_line_for_each_message(folder: Path) -> None:
    lines = [json.loads(line) for line in run(str(folder), "--json").stdout.splitlines()]
    assert [next(iter(line)) for line in lines] == ["plan", *["progress"] * (len(lines) - 2), "pack"]
    assert {tuple(line["progress"]) for line in lines[1:-1]} == {("phase", "bytesDone", "bytesTotal", "bytesPerSecond")}
    assert lines[-1]["pack"]["path"] == str(folder / PACK)


def test_a_pack_is_checked_and_removed(folder: Path) -> None:
    packed(folder)
    assert "every byte of the pack" in run(str(folder), "--check").stdout
    assert "is gone" in run(str(folder), "--remove").stdout
    assert run(str(folder), "--remove").stdout == f"{folder} has no pack\n"
    failed = run(str(folder), "--check", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["error"]["reason"] == "CHECKPOINT_REJECTED"


def test_a_pack_that_another_writes_is_told(folder: Path) -> None:
    import fcntl

    with (folder / f"{PACK}.partial").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run(str(folder), "--json")
    error = json.loads(result.stdout.splitlines()[-1])["error"]
    assert (result.exit_code, error["code"], error["reason"]) == (1, "ABORTED", "PACK_BUSY")
    assert "error: ABORTED PACK_BUSY: another process packs this checkpoint now" in result.stderr


@pytest.mark.parametrize("flags", [("--force", "--check"), ("--check", "--remove"), ("--force", "--remove")])
def test_flags_that_exclude_each_other_are_wrong_usage(folder: Path, flags: tuple[str, str]) -> None:
    assert run(str(folder), *flags).exit_code == 2


def test_a_model_of_the_hubs_cache_is_packed_in_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    weights = (write_experts(tmp_path / "apart", files=1) / "model.safetensors").read_bytes()
    home = write_repository(tmp_path, "org/moe", files={"model.safetensors": weights})
    snapshot = home / "snapshots" / FIRST
    (before,) = cached_models(tmp_path)
    size = before.size_bytes()
    assert run("org/moe").exit_code == 0
    (after,) = cached_models(tmp_path)
    assert after.size_bytes() == size + (snapshot / PACK).stat().st_size
    assert remove(tmp_path, after) > size
    assert not home.exists()


def test_a_model_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_experts(tmp_path / "moe")
    result = run("moe")
    assert result.exit_code == 1
    assert "pomona pack-experts ./moe" in result.stderr
    assert "no model moe is in the hub's cache" in result.stderr
