"""What slabs of routed experts take in memory, and whether they can hold them, from headers alone; no MLX.

Layers whose experts are alike share a slab. Its sizes here are the most that `models.experts.slabs` makes of them.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint
from models.checkpoint.expert_tensors import ExpertsShape, expert_module, unnumbered
from models.checkpoint.names import is_expert_name
from models.checkpoint.routed_experts import RoutedExperts
from models.checkpoint.stored_experts import ReadAs, stored_experts
from models.checkpoint.tensors import TensorInfo

# What each slab reads through.
READ_BYTES = 4 << 20
# Of an expert: three matrices of codes, scales, biases and a global scale; each begins on a page and has one in front.
_MOST_PARTS = 12
_LAYER = re.compile(r"\.layers\.(\d+)\.")

# What is stored of a layer's experts: names without their numbers, dtypes and shapes.
_Kind = frozenset[tuple[str, str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class SlabKind:
    """The slab of layers whose experts are alike.

    Attributes:
        num_experts: of all these layers.
        fewest_slots: that a step can be served with.
        expert_bytes: of one.
    """

    num_experts: int
    fewest_slots: int
    expert_bytes: int

    @property
    def most_slots(self) -> int:
        """Slots for every expert."""
        return max(self.fewest_slots, self.num_experts)


@dataclass(frozen=True, slots=True)
class SlabSizes:
    """Bytes of all slabs of a model together.

    Attributes:
        least: with the fewest slots that a step can be served with.
        most: with a slot for every expert.
        kinds: the slabs.
    """

    least: int
    most: int
    kinds: tuple[SlabKind, ...] = ()

    @property
    def num_experts(self) -> int:
        """Experts of all layers."""
        return sum(kind.num_experts for kind in self.kinds)

    def room(self, budget_bytes: int) -> int:
        """Return how many experts have a slot within a budget, divided as `models.experts.slabs` does."""
        everything = sum(kind.most_slots * kind.expert_bytes for kind in self.kinds)
        share = max(0, budget_bytes - self.least) / everything if everything else 0.0
        slots = (kind.fewest_slots + int(share * kind.most_slots) for kind in self.kinds)
        return sum(min(kind.num_experts, each) for kind, each in zip(self.kinds, slots, strict=True))


def slab_sizes(checkpoint: Checkpoint, experts: RoutedExperts, bytes_of: Callable[[TensorInfo], int]) -> SlabSizes:
    """Return what slabs take.

    Args:
        checkpoint: its headers.
        experts: that it has.
        bytes_of: tells what a tensor takes as it is computed with.
    """
    kinds: dict[str, set[tuple[str, str, tuple[int, ...]]]] = {}
    sizes: Counter[str] = Counter()
    for name, info in checkpoint.tensors.items():
        found = _LAYER.search(name)
        if found is not None and is_expert_name(name):
            own = unnumbered(name[found.end() :])
            kinds.setdefault(found[1], set()).add((own, info.dtype, info.shape))
            sizes[found[1]] += bytes_of(info)
    layers_of: dict[_Kind, list[str]] = {}
    for layer, kind in kinds.items():
        layers_of.setdefault(frozenset(kind), []).append(layer)
    slabs = tuple(
        SlabKind(
            num_experts=len(layers) * experts.num_experts,
            fewest_slots=len(layers) + experts.num_chosen,
            expert_bytes=-(-max(sizes[layer] for layer in layers) // experts.num_experts),
        )
        for layers in layers_of.values()
    )
    least = sum(_slab_bytes(slab.fewest_slots, slab.expert_bytes) for slab in slabs)
    most = sum(_slab_bytes(slab.most_slots, slab.expert_bytes) for slab in slabs)
    return SlabSizes(least, most, slabs)


def can_be_slabs(checkpoint: TextCheckpoint, read_as: ReadAs) -> bool:
    """Tell whether all experts are stored so that readers fill slots with them.

    Args:
        checkpoint: its headers.
        read_as: tells what the arithmetic reads of a tensor.

    Raises:
        CheckpointCorrupt, CheckpointRejected: as `stored_experts`.
    """
    experts, width = checkpoint.text.experts, checkpoint.text.hidden_size
    modules = {expert_module(name) for name in checkpoint.tensors if is_expert_name(name)} - {None}
    for module in modules:
        layer = _LAYER.search(module or "")
        if module is None or layer is None:
            continue
        shape = ExpertsShape(int(layer[1]), module, experts.num_experts, experts.intermediate_size, width)
        stored = stored_experts(checkpoint, shape, read_as)
        if stored is None or not all(stack.is_readable for stack in stored.parts):
            return False
    return True


def _slab_bytes(num_slots: int, expert_bytes: int) -> int:
    return num_slots * expert_bytes + 2 * _MOST_PARTS * mmap.PAGESIZE + READ_BYTES
