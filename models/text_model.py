"""What every text architecture offers to whoever steps it."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from models.layers.cache import KeptLayer, Step


class TextModel(Protocol):
    """A graph with its weights; the head apart, so that only the positions in need get logits."""

    @property
    def attention_layers(self) -> tuple[KeptLayer, ...]:
        """What a cache has to know of each layer."""
        ...

    def hidden(self, step: Step) -> mx.array:
        """Compute what the head reads, and add the step's keys and values to the cache.

        Returns:
            Compute dtype [1, N, E], not evaluated.
        """
        ...

    def head(self, hidden: mx.array) -> mx.array:
        """Turn positions [1, M, E] into logits [1, M, V] in the compute dtype, not evaluated."""
        ...
