"""What MLX computes on by default, in this project's words."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

DeviceName = Literal["cpu", "metal", "cuda"]


def device_name() -> DeviceName:
    """Return the kind of MLX's default device."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
