"""What this machine would compute with, found out without importing MLX."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import native
from models.checkpoint.sizes import Device

# What each CUDA wheel of MLX installs; beside it there must be a driver, or MLX falls back to the CPU.
_CUDA_BACKENDS = ("mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")
_CUDA_DRIVER = Path("/proc/driver/nvidia/version")


def device() -> Device:
    """Return what `models.layers.device.device_name` would."""
    if sys.platform == "darwin":
        return "metal" if platform.machine() == "arm64" else "cpu"
    return "cuda" if _CUDA_DRIVER.exists() and any(map(_is_installed, _CUDA_BACKENDS)) else "cpu"


def has_kernels() -> bool:
    """Return whether this install has native kernels."""
    return native.is_built()


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
