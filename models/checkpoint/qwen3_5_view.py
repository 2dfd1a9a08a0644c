"""How a Qwen 3.5 checkpoint is read: as its makers publish it, or as mlx-lm has converted it.

Published files hold a part that sees pictures and one that guesses tokens ahead, norms less one, and convolutions with
their taps last; converted ones have neither part, whole norms, and taps before the one input of each channel.

Source: `sanitize` of mlx-lm's `qwen3_5`; the reference system, which knows the published form by the guessing part too.
"""

from __future__ import annotations

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.view import WeightsView

_LEFT_OUT = ("vision_tower.", "model.vision_tower.", "model.visual.", "visual.")
_GUESSING = ("mtp.", "model.mtp.")
_NORMS = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
_CONVOLUTION = ".conv1d.weight"


def qwen3_5_view(checkpoint: Checkpoint) -> WeightsView | None:
    """Return how the graph reads a checkpoint; None where it holds just what the graph asks for."""
    tensors = checkpoint.tensors
    names = {name: name for name in tensors if not name.startswith((*_LEFT_OUT, *_GUESSING))}
    has_taps_last = any(name.endswith(_CONVOLUTION) and tensors[name].shape[-1] != 1 for name in names)
    is_published = has_taps_last or any(name.startswith(_GUESSING) for name in tensors)
    if not is_published and len(names) == len(tensors):
        return None
    return WeightsView(names, _repair if is_published else None)


def _repair(name: str, array: mx.array) -> mx.array | None:
    if name.endswith(_CONVOLUTION) and array.ndim == 3 and array.shape[-1] != 1:
        return mx.contiguous(mx.moveaxis(array, 2, 1))  # [C, 1, K] -> [C, K, 1]
    if name.endswith(_NORMS) and array.ndim == 1:
        return array + 1.0
    return None
