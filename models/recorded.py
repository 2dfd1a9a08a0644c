"""A text model whose forward is recorded with its first step, and from then on is one operation.

Building a graph of some 200 operations for each token, and having MLX run it, takes a quarter of the time of a small
model's decode step on a CPU; and MLX gives every operation of a graph memory before the first has run. A recorded
forward has the bits of the graph that it was recorded of.
"""

from __future__ import annotations

import logging

import mlx.core as mx

from models.layers.cache import KeptLayer, Step
from models.layers.paged_cache import PagedStep
from models.text_model import TextModel
from native.errors import NotRecordable
from native.program import Program

_TOKENS = "tokens"
_log = logging.getLogger(__name__)


class RecordedModel:
    """Does what a model does, by programs where the cache is paged.

    A step with adapters, which differ from step to step, runs as a graph.

    Args:
        graph: a model that is built for the native kernels; its `hidden` evaluates nothing, and depends on nothing of a
            step without adapters but `PagedStep.inputs`.

    Attributes:
        graph: as given.
    """

    def __init__(self, graph: TextModel) -> None:
        self.graph = graph
        self._is_recordable = True
        self._hidden: Program | None = None
        self._last_layer: Program | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether steps of a paged cache run as programs by now."""
        return self._hidden is not None

    @property
    def attention_layers(self) -> tuple[KeptLayer, ...]:
        """See `TextModel.attention_layers`."""
        return self.graph.attention_layers

    def hidden(self, step: Step) -> mx.array:
        """See `TextModel.hidden`."""
        if not isinstance(step, PagedStep) or not self._is_recordable or step.adapters.are_used:
            return self.graph.hidden(step)
        if self._hidden is None or self._last_layer is None:
            hidden = self._record(step)
            if self._hidden is None or self._last_layer is None:
                return hidden
        # One of the two is evaluated: an inner part of a prompt needs no more than what the last layer stores.
        step.run(self._last_layer)
        return self._hidden(step.inputs)[0]

    def head(self, hidden: mx.array) -> mx.array:
        """See `TextModel.head`."""
        return self.graph.head(hidden)

    def _record(self, step: PagedStep) -> mx.array:
        hidden = self.graph.hidden(step)
        try:
            self._hidden = Program(step.inputs, [hidden], [*step.dimensions, (None, _TOKENS, None)])
            self._last_layer = Program(step.inputs, step.state(), [*step.dimensions, (None, _TOKENS, None)])
        except NotRecordable as error:
            self._is_recordable = False
            _log.info("forward is not recorded", extra={"operation": error.operation})
        return hidden
