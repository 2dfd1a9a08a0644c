"""Weights packed as small floats with a scale for each group of them, computed with by MLX's own operation everywhere.

Three formats: `mxfp4` and `mxfp8` (a power of two for 32 weights) and `nvfp4` (a float of 8 bits for 16 weights).
Source: OCP Microscaling Formats v1.0; NVIDIA's NVFP4. None has biases, and the kernels of our own know none of them.

The scales of `nvfp4` reach from 2^-9 to 448. A matrix that needs others has a scale of its own beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from models.layers.arithmetic import Arithmetic
from models.layers.cache import Step

# The largest of the floats of 8 bits (e4m3) by the largest of those of 4 (e2m1).
_LARGEST = 448 * 6


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix in one of the formats.

    Attributes:
        codes: uint32 [rows, columns * bits / 32], the first code in the lowest bits.
        scales: uint8 [rows, columns / group_size].
        group_size: columns that share a scale.
        bits: bits a code.
        mode: MLX's word for the format.
        global_scale: float32 []: the largest magnitude of the matrix, which stands for the largest that codes and
            scales together can say; only of `nvfp4`, None where they say the weights themselves.
    """

    codes: mx.array
    scales: mx.array
    group_size: int
    bits: int
    mode: str
    global_scale: mx.array | None = None


class FloatLinear:
    """y = x W^T + b with W kept packed."""

    def __init__(self, weight: FloatMatrix, bias: mx.array | None, arithmetic: Arithmetic) -> None:
        self.weight = weight
        self.bias = bias
        self._add = arithmetic.add
        self._factor = None if weight.global_scale is None else weight.global_scale / _LARGEST

    def __call__(self, x: mx.array, _step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        weight = self.weight
        product = mx.quantized_matmul(
            x,
            weight.codes,
            weight.scales,
            transpose=True,
            group_size=weight.group_size,
            bits=weight.bits,
            mode=weight.mode,
        )
        if self._factor is not None:
            product = (product * self._factor).astype(product.dtype)
        return product if self.bias is None else self._add(product, self.bias)

    def add_to(self, total: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Return `total` and what the layer gives for `x` together."""
        return self._add(total, self(x, step))


class FloatEmbedding:
    """A row of the model's width for every token, with the matrix kept packed."""

    def __init__(self, weight: FloatMatrix, dtype: mx.Dtype) -> None:
        self._weight = weight
        self._dtype = dtype

    def __call__(self, tokens: mx.array) -> mx.array:
        """Turn token ids [B, T] into vectors [B, T, E]."""
        weight = self._weight
        return mx.dequantize(
            weight.codes[tokens],
            weight.scales[tokens],
            group_size=weight.group_size,
            bits=weight.bits,
            mode=weight.mode,
            global_scale=weight.global_scale,
            dtype=self._dtype,
        )
