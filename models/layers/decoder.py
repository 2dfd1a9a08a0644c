"""The frame of a text model: embedding, layers one after the other, last normalization, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from models.checkpoint.text_config import TextConfig
from models.checkpoint.weights import Weights
from models.layers.arithmetic import Rotary
from models.layers.cache import KeptLayer, Rotation, Step
from models.layers.linear import LinearLayer
from models.layers.norms import RMSNorm

_OTHER_MODELS = (
    "vision_tower",
    "audio_tower",
    "multi_modal_projector",
    "embed_vision",
    "embed_audio",
    "vision_embedder",
)


class DecoderLayer(Protocol):
    """One layer of a model."""

    def __call__(self, x: mx.array, step: Step, rotation: Rotation | None, /) -> mx.array:
        """Apply the layer to `x` [1, N, E]."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A layer in its place.

    Attributes:
        layer: as built.
        kept: what a cache has to know of it.
        rotary: positions of its queries and keys; None: it has none.
    """

    layer: DecoderLayer
    kept: KeptLayer
    rotary: Rotary | None


class Decoder:
    """The whole model; `hidden` and `head` apart, so that only the positions in need get logits.

    Args:
        embed_tokens: token ids [1, N] to vectors [1, N, E].
        layers: in order.
        norm: what the head reads goes through it.
        lm_head: the head.
    """

    def __init__(
        self,
        embed_tokens: Callable[[mx.array], mx.array],
        layers: Sequence[Placed],
        norm: RMSNorm,
        lm_head: LinearLayer,
    ) -> None:
        self.embed_tokens = embed_tokens
        self.layers = [placed.layer for placed in layers]
        self.norm = norm
        self.lm_head = lm_head
        self._kept = tuple(placed.kept for placed in layers)
        self._rotaries = [placed.rotary for placed in layers]

    @property
    def attention_layers(self) -> tuple[KeptLayer, ...]:
        """What a cache has to know of each layer."""
        return self._kept

    def hidden(self, step: Step) -> mx.array:
        """See `TextModel.hidden`."""
        x = self.embed_tokens(step.tokens)  # [1, N] -> [1, N, E]
        rotations = Rotations(step)
        for layer, rotary in zip(self.layers, self._rotaries, strict=True):
            x = layer(x, step, rotations.of(rotary))
        return self.norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        """See `TextModel.head`."""
        return self.lm_head(hidden, None)


class Rotations:
    """The positions of one step, made once for all layers that agree on them."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._made: dict[int, Rotation] = {}

    def of(self, rotary: Rotary | None) -> Rotation | None:
        """Return what applies the step's positions; None where a layer has none."""
        if rotary is None:
            return None
        if id(rotary) not in self._made:
            self._made[id(rotary)] = rotary.at(self._step)
        return self._made[id(rotary)]


def ignore_other_models(weights: Weights) -> None:
    """Accept what a wrapper's file holds beside its text model."""
    for module in _OTHER_MODELS:
        weights.ignore(module)
        weights.ignore(f"model.{module}")


def head_of(text: TextConfig, weights: Weights) -> LinearLayer:
    """Return the head: the embedding itself where the two are tied.

    Raises:
        CheckpointCorrupt, CheckpointRejected: its tensor is missing or has another shape, by name.
    """
    if text.tie_word_embeddings:
        weights.ignore("lm_head")
    name = "model.embed_tokens" if text.tie_word_embeddings else "lm_head"
    return weights.linear(name, text.vocab_size, text.hidden_size, takes_adapters=False)
