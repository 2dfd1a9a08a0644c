"""The worker's side of `pomona doctor`: each check in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.doctor import CHECKS


def run(*arguments: str, before: str = "pass") -> "subprocess.CompletedProcess[str]":
    code = f"import sys; {before}; from worker.doctor import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def finding(name: str, before: str = "pass") -> dict[str, str]:
    done = run(name, before=before)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "speed"])
def test_check_finds_no_fault(name: str) -> None:
    found = finding(name)
    assert (found["check"], found["state"] in {"ok", "warn"}) == (name, True), found
    assert found["value"]


@pytest.mark.slow
def test_speed_names_both_sides() -> None:
    value = finding("speed")["value"]
    assert value.count("prefill") == 2
    assert "mlx-lm" in value


def test_missing_mlx_is_a_warning_that_says_what_to_install() -> None:
    found = finding("mlx", before="sys.modules['mlx'] = None")
    assert (found["state"], found["advice"]) == ("warn", "pip install 'pomona[worker]'")
    assert "mlx is not installed" in found["value"]


def test_slow_blas_is_a_warning() -> None:
    found = finding("blas", before="import native.blas; native.blas.load = lambda: None")
    assert found["state"] == "warn"
    assert "no OpenBLAS" in found["value"]


def test_missing_extension_is_a_warning() -> None:
    before = "import native; native.is_built = lambda: False"
    assert [finding(name, before)["state"] for name in ("extension", "mapping")] == ["warn", "warn"]


def test_check_that_breaks_is_a_finding_too() -> None:
    found = finding("mapping", "import tempfile; tempfile.tempdir = '/nowhere'")
    assert (found["state"], found["value"].partition(":")[0]) == ("fail", "FileNotFoundError")


def test_unknown_check_is_refused_with_the_list() -> None:
    done = run("nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "mlx" in done.stderr


def test_checkpoint_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    assert run("checkpoint", str(tmp_path / "new")).returncode == 0
    assert (tmp_path / "new" / "config.json").is_file()
    assert (tmp_path / "new" / "model.safetensors").is_file()
