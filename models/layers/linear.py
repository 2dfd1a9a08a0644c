"""Linear layers over plain and packed weights, alone and together.

Every linear layer of a model is called with the step beside its input, because what an adapter adds differs by row;
None stands for a layer that no adapter changes: the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from models.layers.arithmetic import Arithmetic
from models.layers.cache import Step
from models.layers.quantized import QuantizedMatrix


class LinearLayer(Protocol):
    """What a model calls: [..., inputs] to [..., outputs]."""

    def __call__(self, x: mx.array, step: Step | None, /) -> mx.array:
        """Apply the layer to every position of `x`."""
        ...


class Linear:
    """y = x W^T + b with W [outputs, inputs] in the compute dtype.

    The product is MLX's, whose sums run in an order that depends on the number of rows: on the CPU a position's last
    bits depend on what is computed with it, which packed weights avoid.
    """

    def __init__(self, weight: mx.array, bias: mx.array | None = None) -> None:
        self._transposed = weight.T
        self._bias = bias

    def __call__(self, x: mx.array, _step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        if self._bias is None:
            return x @ self._transposed
        return mx.addmm(self._bias, x, self._transposed)


class QuantizedLinear:
    """The same with W kept packed."""

    def __init__(self, weight: QuantizedMatrix, bias: mx.array | None, arithmetic: Arithmetic) -> None:
        self.weight = weight
        self.bias = bias
        self._product = arithmetic.product(weight)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        return self.finish(self._product(x), step)

    def finish(self, product: mx.array, _step: Step | None) -> mx.array:
        """Turn the product x W^T into what the layer gives."""
        return product if self.bias is None else product + self.bias


class LinearGroup:
    """Several linear layers over the same input, multiplied together where all are packed."""

    def __init__(self, layers: Sequence[LinearLayer], arithmetic: Arithmetic) -> None:
        self._layers = layers
        self._packed = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
        is_packed = len(self._packed) == len(layers)
        self._products = arithmetic.products([layer.weight for layer in self._packed]) if is_packed else None

    def __call__(self, x: mx.array, step: Step | None) -> list[mx.array]:
        """Apply each layer to every position of `x`."""
        if self._products is None:
            return [layer(x, step) for layer in self._layers]
        products = self._products(x)
        return [layer.finish(product, step) for layer, product in zip(self._packed, products, strict=True)]


class GatedLinear:
    """silu(gate(x)) * up(x) of two linear layers, in one operation where both are packed and add no bias."""

    def __init__(self, gate: LinearLayer, up: LinearLayer, arithmetic: Arithmetic) -> None:
        self._both = LinearGroup((gate, up), arithmetic)
        self._gate = arithmetic.gate
        self._product = None
        if isinstance(gate, QuantizedLinear) and isinstance(up, QuantizedLinear) and gate.bias is up.bias is None:
            self._product = arithmetic.gated_product(gate.weight, up.weight)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layers to every position of `x`."""
        if self._product is None:
            return self._gate(*self._both(x, step))
        return self._product(x)
