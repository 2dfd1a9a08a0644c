"""`fuse`: what is said while a model and an adapter are made one, and which model is meant."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from tests.models.fusing.folders import Folders, write

Q4 = {"group_size": 32, "bits": 4}


def run(folders: Folders, *options: str, model: str = "") -> Result:
    named = [model or str(folders.model), str(folders.adapter), str(folders.output)]
    return CliRunner().invoke(app, ["fuse", *named, *options], env={"NO_COLOR": "1"})


def test_the_disk_that_it_needs_is_said_first(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4)
    result = run(folders)
    assert result.exit_code == 0, result.stderr
    first, second = result.stderr.splitlines()[:2]
    assert first.startswith(f"{folders.model}: 4 layers changed; the folder needs ")
    assert first.endswith(" are free")
    assert second == f"{folders.model}: 4 packed layers kept as floats, which is larger"
    assert f"are one in {folders.output}: 4 layers changed" in result.stdout
    assert (folders.output / "model.safetensors").exists()


def test_programs_get_a_line_for_each_message(tmp_path: Path) -> None:
    folders = write(tmp_path)
    lines = [json.loads(line) for line in run(folders, "--json").stdout.splitlines()]
    assert [next(iter(line)) for line in lines] == ["plan", *["progress"] * (len(lines) - 2), "fused"]
    assert {tuple(line["progress"]) for line in lines[1:-1]} == {("phase", "done", "total")}
    assert lines[-1]["fused"]["path"] == str(folders.output)


def test_something_at_its_place_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path)
    folders.output.mkdir()
    error = json.loads(run(folders, "--json").stdout.splitlines()[-1])["error"]
    assert (error["code"], error["reason"]) == ("ALREADY_EXISTS", "OUTPUT_EXISTS")


def test_packing_again_that_loses_the_adapter_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path, Q4, size=0.05)
    result = run(folders, "--pack")
    assert result.exit_code == 1
    assert "FUSE_DIFFERS" in result.stderr
    assert not folders.output.exists()


def test_a_checkpoint_that_is_not_there_is_told(tmp_path: Path) -> None:
    folders = write(tmp_path)
    error = json.loads(run(folders, "--json", model=str(tmp_path / "none")).stdout.splitlines()[-1])["error"]
    assert error["reason"] == "CHECKPOINT_REJECTED"


def test_a_model_that_is_not_cached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folders = write(tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    result = run(folders, model="model")
    assert result.exit_code == 1
    assert "pomona fuse ./model ADAPTER OUT" in result.stderr
    assert "no model model is in the hub's cache" in result.stderr
