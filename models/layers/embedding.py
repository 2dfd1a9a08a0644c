"""Token embeddings over dense and packed weights. A tied head is a linear layer over the same arrays."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from models.layers.arithmetic import Arithmetic
from models.layers.quantized import QuantizedMatrix


class TokenEmbedding(Protocol):
    """What a model calls: token ids [B, T] to vectors [B, T, E]."""

    def __call__(self, tokens: mx.array, /) -> mx.array:
        """Turn token ids into vectors."""
        ...


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


class ScaledEmbedding:
    """An embedding whose vectors are multiplied by a number."""

    def __init__(self, embedding: TokenEmbedding, scale: mx.array, arithmetic: Arithmetic) -> None:
        self._embedding = embedding
        self._scale = scale
        self._arithmetic = arithmetic

    def __call__(self, tokens: mx.array) -> mx.array:
        """Turn token ids [B, T] into vectors [B, T, E]."""
        return self._arithmetic.multiply(self._embedding(tokens), self._scale)
