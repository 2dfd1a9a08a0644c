"""Token embeddings over dense and packed weights. A tied head is a linear layer over the same arrays."""

from __future__ import annotations

import mlx.core as mx

from models.layers.arithmetic import Arithmetic
from models.layers.quantized import QuantizedMatrix


class Embedding:
    """A row of the model's width for every token: [V, E] of floats, in the dtype that the arithmetic reads."""

    def __init__(self, weight: mx.array, arithmetic: Arithmetic) -> None:
        self._weight = weight
        self._arithmetic = arithmetic

    def __call__(self, tokens: mx.array) -> mx.array:
        """Turn token ids [B, T] into vectors [B, T, E]."""
        return self._arithmetic.dense_take(self._weight, tokens)


class QuantizedEmbedding:
    """The same with the matrix kept packed; only the rows that are read are expanded."""

    def __init__(self, weight: QuantizedMatrix, arithmetic: Arithmetic) -> None:
        self._weight = weight
        self._arithmetic = arithmetic

    def __call__(self, tokens: mx.array) -> mx.array:
        """Turn token ids [B, T] into vectors [B, T, E]."""
        return self._arithmetic.take(self._weight, tokens)
