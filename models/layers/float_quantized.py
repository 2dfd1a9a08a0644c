"""Weights packed as small floats with a scale for each group of them, computed with by MLX's own operation everywhere.

Three formats: `mxfp4` and `mxfp8` (a power of two for 32 weights) and `nvfp4` (a float of 8 bits for 16 weights).
Source: OCP Microscaling Formats v1.0; NVIDIA's NVFP4. None has biases, and the kernels of our own know none of them.

The scales of `nvfp4` reach from 2^-9 to 448. A matrix that needs others has a scale of its own beside them.
"""

from __future__ import annotations

import mlx.core as mx

from models.layers.arithmetic import Arithmetic
from models.layers.cache import Step
from models.layers.linear import addition_to
from models.layers.quantized import LARGEST_OF_CODES, FloatMatrix


class FloatLinear:
    """y = x W^T + b with W kept packed."""

    def __init__(
        self, weight: FloatMatrix, bias: mx.array | None, arithmetic: Arithmetic, module: str | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.module = module
        self._add = arithmetic.add
        self._factor = None if weight.global_scale is None else weight.global_scale / LARGEST_OF_CODES

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
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
        y = product if self.bias is None else self._add(product, self.bias)
        addition = addition_to(self.module, step)
        return y if addition is None else addition(x, y)

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
