"""The gated activation of the feed-forward part.

Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from models.layers.device import device_name
from models.step import NumericPath

Gate = Callable[[mx.array, mx.array], mx.array]


def swiglu(path: NumericPath) -> Gate:
    """Return the function (gate, up) -> silu(gate) * up for a path on MLX's default device.

    One compiled kernel, as in mlx-lm, but for the fast path on the CPU: there compiling calls a C++ compiler on the
    machine that serves. The compiled kernel rounds otherwise than separate operations.
    """
    separate = path is NumericPath.FAST and device_name() == "cpu"
    return _exponential_form if separate else mx.compile(_sigmoid_form, shapeless=True)


def _sigmoid_form(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


def _exponential_form(gate: mx.array, up: mx.array) -> mx.array:
    # MLX's sigmoid on the CPU costs half as much again as its exponential. Far below zero the divisor is infinite and
    # the quotient the zero that silu tends to.
    return gate * up / (1 + mx.exp(-gate))
