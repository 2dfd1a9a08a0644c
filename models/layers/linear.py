"""Linear layers over plain and packed weights.

Every linear layer of a model is called with the step beside its input, because what an adapter adds differs by row;
None stands for a layer that no adapter changes: the head.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from models.layers.cache import Step
from models.layers.quantized import QuantizedMatrix


class LinearLayer(Protocol):
    """What a model calls: [..., inputs] to [..., outputs]."""

    def __call__(self, x: mx.array, step: Step | None, /) -> mx.array:
        """Apply the layer to every position of `x`."""
        ...


class Linear:
    """y = x W^T + b with W [outputs, inputs] in the compute dtype."""

    def __init__(self, weight: mx.array, bias: mx.array | None = None) -> None:
        self._transposed = weight.T
        self._bias = bias

    def __call__(self, x: mx.array, _step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        if self._bias is None:
            return x @ self._transposed
        return mx.addmm(self._bias, x, self._transposed)


class QuantizedLinear:
    """The same with W kept packed.

    `expand_rows` is the number of rows of `x` from which W is expanded for the call and multiplied by BLAS; None means
    never. MLX's own product of packed weights on the CPU takes as long for each row as for the first.
    """

    def __init__(
        self, weight: QuantizedMatrix, bias: mx.array | None = None, *, expand_rows: int | None = None
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._expand_rows = expand_rows

    def __call__(self, x: mx.array, _step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        num_rows = x.size // x.shape[-1]
        if self._expand_rows is not None and num_rows >= self._expand_rows:
            y = x @ self._weight.expand().T
        else:
            y = self._weight.multiply(x)
        return y if self._bias is None else y + self._bias
