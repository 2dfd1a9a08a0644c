"""Reading the tensors of a checkpoint under the names, and with the values, that an architecture's graph asks for.

The same model is published by several generations of converters, which name tensors otherwise, store some in another
form and add what no text model reads. A view says so once; who makes layers sees one generation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.quantization import Quantization
from models.checkpoint.tensors import TensorInfo

# The name that the graph asks for and the array as stored, to the right one; None: it is right as stored.
Repair = Callable[[str, mx.array], mx.array | None]


@dataclass(frozen=True, slots=True)
class WeightsView:
    """How an architecture reads a checkpoint.

    Attributes:
        names: for every tensor that there is for the graph, by the name that it asks for, the checkpoint's canonical
            name; what stands here for nothing is not there.
        repair: makes an array right when it is first asked for; it evaluates nothing. None: all are right.
    """

    names: Mapping[str, str]
    repair: Repair | None = None

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the graph's names, its quantization's among them.

        Raises:
            CheckpointCorrupt: it has no tensor of a name.
        """
        tensors = {name: _renamed(checkpoint, name, stored) for name, stored in self.names.items()}
        return replace(checkpoint, tensors=tensors, quantization=self._quantization(checkpoint.quantization))

    def _quantization(self, stated: Quantization | None) -> Quantization | None:
        if stated is None:
            return None
        modules = {_module(stored): _module(name) for name, stored in self.names.items()}
        known = {module: modules.get(module, module) for module in stated.per_layer}
        return replace(
            stated,
            per_layer={known[module]: layer for module, layer in stated.per_layer.items()},
            keys={known[module]: key for module, key in stated.keys.items()},
        )


def _renamed(checkpoint: Checkpoint, name: str, stored: str) -> TensorInfo:
    info = checkpoint.tensors.get(stored)
    if info is None:
        raise CheckpointCorrupt("is missing", file=checkpoint.weights_file, key=stored)
    return replace(info, name=name)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
