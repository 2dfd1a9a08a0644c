"""Linear layers over dense and packed weights, alone and together.

Every linear layer of a model is called with the step beside its input, because what an adapter adds differs by row;
None stands for a layer that no adapter changes: the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import mlx.core as mx

from models.layers.arithmetic import Activation, Arithmetic
from models.layers.cache import Step
from models.layers.low_rank import Addition
from models.layers.quantized import QuantizedMatrix


class LinearLayer(Protocol):
    """What a model calls: [..., inputs] to [..., outputs]."""

    @property
    def module(self) -> str | None:
        """By which adapters know the layer; None: none changes it."""
        ...

    def __call__(self, x: mx.array, step: Step | None, /) -> mx.array:
        """Apply the layer to every position of `x`."""
        ...

    def add_to(self, total: mx.array, x: mx.array, step: Step | None, /) -> mx.array:
        """Return `total` [..., outputs] and what the layer gives for `x` together."""
        ...


def addition_to(module: str | None, step: Step | None) -> Addition | None:
    """Return what adapters of a step add to the layer of a module; None: nothing."""
    return None if module is None or step is None else step.adapters.of(module)


class Linear:
    """y = x W^T + b with W [outputs, inputs] of floats, in the dtype that the arithmetic reads.

    Args:
        weight: W.
        bias: b [outputs]; None: there is none.
        arithmetic: what computes.
        module: by which adapters know the layer; None: none changes it.
    """

    def __init__(
        self, weight: mx.array, bias: mx.array | None, arithmetic: Arithmetic, module: str | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.module = module
        self._add = arithmetic.add
        self._product = arithmetic.dense_product(weight, bias)
        self._sum = arithmetic.dense_product_sum(weight, bias)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        return self.adapt(self._product(x), x, step)

    def add_to(self, total: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Return `total` and what the layer gives for `x` together."""
        if addition_to(self.module, step) is None:
            return self._sum(x, total)
        return self._add(total, self(x, step))

    def adapt(self, y: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Add to the layer's own outputs `y` what adapters of the step add."""
        addition = addition_to(self.module, step)
        return y if addition is None else addition(x, y)


class QuantizedLinear:
    """The same with W kept packed."""

    def __init__(
        self, weight: QuantizedMatrix, bias: mx.array | None, arithmetic: Arithmetic, module: str | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.module = module
        self._add = arithmetic.add
        self._product = arithmetic.product(weight)
        self._sum = arithmetic.product_sum(weight)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layer to every position of `x`."""
        return self.finish(self._product(x), x, step)

    def add_to(self, total: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Return `total` and what the layer gives for `x` together."""
        if self.bias is None and addition_to(self.module, step) is None:
            return self._sum(x, total)
        return self._add(total, self(x, step))

    def finish(self, product: mx.array, x: mx.array, step: Step | None) -> mx.array:
        """Turn the product x W^T into what the layer gives."""
        y = product if self.bias is None else self._add(product, self.bias)
        addition = addition_to(self.module, step)
        return y if addition is None else addition(x, y)


class LinearGroup:
    """Several linear layers over the same input, multiplied together where all are packed or all dense."""

    def __init__(self, layers: Sequence[LinearLayer], arithmetic: Arithmetic) -> None:
        self._layers = layers
        self._packed = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
        self._dense = [layer for layer in layers if isinstance(layer, Linear)]
        self._products = None
        if len(self._packed) == len(layers):
            self._products = arithmetic.products([layer.weight for layer in self._packed])
        elif len(self._dense) == len(layers):
            self._products = arithmetic.dense_products([(layer.weight, layer.bias) for layer in self._dense])

    def __call__(self, x: mx.array, step: Step | None) -> list[mx.array]:
        """Apply each layer to every position of `x`."""
        if self._products is None:
            return [layer(x, step) for layer in self._layers]
        products = self._products(x)
        if not self._packed:
            return [layer.adapt(product, x, step) for layer, product in zip(self._dense, products, strict=True)]
        return [layer.finish(product, x, step) for layer, product in zip(self._packed, products, strict=True)]


class SplitLinear:
    """A linear layer whose outputs are those of several, one behind the other."""

    def __init__(self, layer: LinearLayer, widths: Sequence[int], arithmetic: Arithmetic) -> None:
        self._layer = layer
        self._columns = arithmetic.columns
        ends = list(accumulate(widths))
        self._ranges = list(zip([0, *ends[:-1]], ends, strict=True))

    def __call__(self, x: mx.array, step: Step | None) -> list[mx.array]:
        """Apply the layer to every position of `x`; an array for each width."""
        together = self._layer(x, step)
        return [self._columns(together, begin, end) for begin, end in self._ranges]


class GatedLinear:
    """act(gate(x)) * up(x) of two linear layers; for silu one operation where both are packed or dense without bias."""

    def __init__(
        self, gate: LinearLayer, up: LinearLayer, arithmetic: Arithmetic, activation: Activation = "silu"
    ) -> None:
        self._layers = (gate, up)
        self._both = LinearGroup(self._layers, arithmetic)
        self._gate = arithmetic.gate if activation == "silu" else arithmetic.gelu_gate
        self._product = None
        if activation != "silu":
            return
        if isinstance(gate, QuantizedLinear) and isinstance(up, QuantizedLinear) and gate.bias is up.bias is None:
            self._product = arithmetic.gated_product(gate.weight, up.weight)
        elif isinstance(gate, Linear) and isinstance(up, Linear) and gate.bias is up.bias is None:
            self._product = arithmetic.dense_gated_product(gate.weight, up.weight)

    def __call__(self, x: mx.array, step: Step | None) -> mx.array:
        """Apply the layers to every position of `x`."""
        if self._product is None or any(addition_to(layer.module, step) for layer in self._layers):
            return self._gate(*self._both(x, step))
        return self._product(x)
