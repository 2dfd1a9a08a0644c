"""The matrices of a layer's experts, those of one kind in one stack."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from models.layers.quantized import FloatMatrix, QuantizedMatrix

# A linear layer's weight with one more axis in front: that of the experts, or of the slots that hold some of them. A
# `FloatMatrix` of this kind has a global scale for each of them, float32 [X].
ExpertMatrix = mx.array | QuantizedMatrix | FloatMatrix


@dataclass(frozen=True, slots=True)
class ExpertStacks:
    """The gated feed-forward parts of X experts, of width I within a model of width E.

    Attributes:
        gate: [X, I, E].
        up: [X, I, E].
        down: [X, E, I].
    """

    gate: ExpertMatrix
    up: ExpertMatrix
    down: ExpertMatrix
