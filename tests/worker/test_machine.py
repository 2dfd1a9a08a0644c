"""What is found out without MLX is what MLX says."""

import subprocess
import sys
from pathlib import Path

import pytest

from models.layers.device import device_name
from native import kernels
from worker import machine


def test_the_device_is_mlxs() -> None:
    assert machine.device() == device_name()


def test_the_kernels_are_those_that_can_be_called() -> None:
    assert machine.has_kernels() == kernels.is_available()


@pytest.mark.parametrize(
    ("platform", "processor", "device"),
    [("darwin", "arm64", "metal"), ("darwin", "x86_64", "cpu"), ("linux", "arm64", "cpu")],
)
def test_each_platform_has_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, processor: str, device: str
) -> None:
    monkeypatch.setattr("worker.machine.sys.platform", platform)
    monkeypatch.setattr("worker.machine.platform.machine", lambda: processor)
    monkeypatch.setattr(machine, "_CUDA_DRIVER", tmp_path / "none")
    assert machine.device() == device


@pytest.mark.parametrize(("backends", "device"), [(("pytest",), "cuda"), (("not-there-at-all",), "cpu")])
def test_a_driver_alone_is_no_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backends: tuple[str, ...], device: str
) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr("worker.machine.sys.platform", "linux")
    monkeypatch.setattr(machine, "_CUDA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(machine, "_CUDA_BACKENDS", backends)
    assert machine.device() == device


def test_asking_imports_no_mlx() -> None:
    script = (
        "import sys; from worker import machine; machine.device(), machine.has_kernels(); print('mlx' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout == "False\n"
