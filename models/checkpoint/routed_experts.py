"""Which routed experts a checkpoint has, from its headers alone; no MLX."""

from __future__ import annotations

import re
from dataclasses import dataclass

from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint
from models.checkpoint.names import is_expert_name

_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts of a mixture.

    Attributes:
        num_layers: that have them.
        num_experts: of each of these layers.
        num_chosen: that a token is given to in each of them.
        stored_bytes: of all of them, as stored.
    """

    num_layers: int
    num_experts: int
    num_chosen: int
    stored_bytes: int


def routed_experts(checkpoint: Checkpoint) -> RoutedExperts | None:
    """Return what experts a checkpoint has; None: none, or it is of an architecture that is not written here."""
    if not isinstance(checkpoint, TextCheckpoint) or not checkpoint.text.experts.num_experts:
        return None
    tensors = [info for name, info in checkpoint.tensors.items() if is_expert_name(name)]
    layers = {found[1] for info in tensors if (found := _LAYER.search(info.name))}
    config = checkpoint.text.experts
    stored_bytes = sum(info.nbytes for info in tensors)
    return RoutedExperts(len(layers), config.num_experts, config.num_chosen, stored_bytes) if tensors else None
