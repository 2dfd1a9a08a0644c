"""The one-shot `fuse`: what it prints, with which code it ends, and what it leaves."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.fusing.folders import Folders, write
from tests.support.tiny_families import Tiny, write_family
from worker import fuse

Answer = tuple[int, list[dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(folders: Folders, **settings: Any) -> Answer:
        given = {"adapter": str(folders.adapter), "output": str(folders.output), **settings}
        code = fuse.main([str(folders.model), json.dumps(given)])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture(autouse=True)
def keep_handler() -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_what_it_takes_is_said_first_and_what_was_found_last(tmp_path: Path, run: Callable[..., Answer]) -> None:
    folders = write(tmp_path, {"group_size": 32, "bits": 4})
    code, lines = run(folders)
    plan, fused = lines[0]["plan"], lines[-1]["fused"]
    assert code == 0
    assert (plan["path"], plan["layers"], plan["unpackedLayers"], plan["packedLayers"]) == (
        str(folders.output),
        4,
        4,
        0,
    )
    assert 0 < plan["bytesTotal"] < plan["neededBytes"] < plan["freeBytes"]
    phases = [line["progress"]["phase"] for line in lines[1:-1]]
    assert list(dict.fromkeys(phases)) == ["fusing", "syncing", "comparing"]
    assert fused["difference"] < 0.03 * fused["effect"]
    assert len(fused["adapterRevision"]) == 64
    assert fused["comparedTokens"] >= fused["agreeingTokens"] > 40


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"adapter": "/absent/adapter"}, "ADAPTER_NOT_FOUND"),
        ({"output": "/absent/folder/fused"}, "FUSE_FAILED"),
        ({"packs_again": True}, "FUSE_DIFFERS"),
    ],
)
def test_what_cannot_be_done_is_told_with_its_reason(
    tmp_path: Path, run: Callable[..., Answer], change: dict[str, Any], reason: str
) -> None:
    folders = write(tmp_path, {"group_size": 32, "bits": 4}, size=0.05)
    code, lines = run(folders, **change)
    assert (code, lines[-1]["reason"]) == (3, reason)
    assert not folders.output.exists()


def test_an_adapter_of_another_model_is_told(tmp_path: Path, run: Callable[..., Answer]) -> None:
    folders = write(tmp_path)
    other = write_family(tmp_path / "other", Tiny("qwen3", {"intermediate_size": 96}))
    code, lines = run(Folders(other, folders.adapter, folders.output))
    assert (code, lines[-1]["reason"]) == (3, "ADAPTER_INCOMPATIBLE")


@pytest.mark.parametrize(
    "settings", ["", "[]", "{}", '{"adapter": "/a"}', '{"adapter": "/a", "output": "relative"}', '{"other": 1}']
)
def test_wrong_settings_are_wrong_usage(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuse.main(["/folder", settings]) == 2
    assert "usage:" in capsys.readouterr().err


def test_one_that_is_asked_to_end_leaves_nothing(tmp_path: Path) -> None:
    folders = write(tmp_path)
    settings = json.dumps({"adapter": str(folders.adapter), "output": str(folders.output)})
    argv = [sys.executable, "-P", "-m", "worker", "fuse", str(folders.model), settings]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith('{"plan"')
        process.terminate()
        lines = process.stdout.read().splitlines()
    ended = process.returncode == 3 and json.loads(lines[-1])["reason"] == "FUSE_FAILED"
    assert ended or folders.output.exists()  # it may have been done already
    assert not (tmp_path / ".fused.partial").exists()
