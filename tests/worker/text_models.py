"""Tiny models for tests of the text workload: one for each way to keep keys and values, and some that misbehave."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.kv_scheme import KVScheme
from models.layers.cache import AttentionLayer, KeptLayer, Step
from models.recorded import RecordedModel
from models.registry import LoadedModel, TextModel, load
from models.step import NumericPath
from tests.models.variants import VARIANTS
from tests.support.tiny_models import write_llama

WINDOW = 24
# Packed weights: there the native kernels give a row the same bits whatever else is in its step.
PACKED: dict[str, Any] = VARIANTS["4-bit"]
WIDE: dict[str, Any] = {**PACKED, "config": {"head_dim": 64}}  # what packed keys and values need
# By kind, see `tiny`.
Models = Callable[[str], LoadedModel]


class Changed:
    """A model that a test changes.

    Args:
        model: the one that computes.
        hidden: gets each step and its hidden states, and returns what the head reads.
        windows: for each layer what it sees; None: as the model says.
    """

    def __init__(
        self,
        model: TextModel,
        hidden: Callable[[Step, mx.array], mx.array] = lambda _, hidden: hidden,
        windows: tuple[int | None, ...] | None = None,
    ) -> None:
        self._model = model
        self._change = hidden
        self._windows = windows

    @property
    def attention_layers(self) -> tuple[KeptLayer, ...]:
        layers = self._model.attention_layers
        if self._windows is None:
            return layers
        pairs = zip(layers, self._windows, strict=True)
        return tuple(replace(layer, window=window) for layer, window in pairs if isinstance(layer, AttentionLayer))

    def hidden(self, step: Step) -> mx.array:
        return self._change(step, self._model.hidden(step))

    def head(self, hidden: mx.array) -> mx.array:
        return self._model.head(hidden)


def changed(loaded: LoadedModel, hidden: Callable[[Step, mx.array], mx.array]) -> LoadedModel:
    """Return a model whose forwards `hidden` sees and changes."""
    return replace(loaded, model=Changed(loaded.model, hidden))


def windowed(loaded: LoadedModel, *windows: int | None) -> LoadedModel:
    """Return a model whose layers see so many tokens."""
    model = loaded.model
    # What was recorded of other windows is no forward for these.
    fresh = RecordedModel(model.graph) if isinstance(model, RecordedModel) else model
    return replace(loaded, model=Changed(fresh, windows=windows))


def tiny(folder: Path, kind: str = "plain", path: NumericPath = NumericPath.FAST, seed: int = 0) -> LoadedModel:
    """Load a tiny Llama that keeps keys and values in one of these ways.

    Args:
        folder: where it is written.
        kind: `plain`, `window` (in one layer), `rows` (without native kernels), or a scheme for packed ones.
        path: how it computes.
        seed: of the weights.
    """
    is_packed = kind not in {"plain", "window", "rows"}
    write_llama(folder, **(WIDE if is_packed else PACKED), seed=seed)
    scheme = KVScheme.from_text(kind if is_packed else "none")
    checkpoint = open_checkpoint(folder)
    loaded = load(checkpoint, path, lambda _: None, cpu_kernels=kind != "rows", kv_scheme=scheme)
    return windowed(loaded, WINDOW, None) if kind == "window" else loaded
