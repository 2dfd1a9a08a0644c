"""By which names a checkpoint holds the weights of a layer's routed experts; headers only, no MLX.

Three layouts, of which a layer has one:

* **stacked** (MLX): `….switch_mlp.gate_proj.weight` [X, I, E], packed or not; the canonical one;
* **fused** (transformers 5): `….experts.gate_up_proj` [X, 2 * I, E], the gate's rows first, and `….experts.down_proj`;
* **each** (what Qwen publishes): `….experts.7.gate_proj.weight` [I, E], a tensor for each expert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.checkpoint.tensors import TensorInfo

Kind = Literal["gate_proj", "up_proj", "down_proj"]
KINDS: tuple[Kind, Kind, Kind] = ("gate_proj", "up_proj", "down_proj")
# The modules that hold stacks, of Qwen's models and of Gemma 4.
STACK_MODULES = ("switch_mlp", "switch_glu")
_NUMBER = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """The routed experts of one layer.

    Attributes:
        layer: its number.
        module: canonical name of what holds the stacks: `model.layers.0.mlp.switch_mlp`.
        num_experts: X.
        inner: width I of an expert.
        width: width E of the model.
    """

    layer: int
    module: str
    num_experts: int
    inner: int
    width: int

    def matrix(self, kind: Kind) -> tuple[int, int, int]:
        """Return the shape of a stack."""
        sizes = (self.width, self.inner) if kind == "down_proj" else (self.inner, self.width)
        return (self.num_experts, *sizes)

    @property
    def unstacked(self) -> str:
        """Canonical name of what holds the experts in the other layouts."""
        outer, _, own = self.module.rpartition(".")
        return outer if own == "switch_glu" else f"{outer}.experts"


@dataclass(frozen=True, slots=True)
class StackSource:
    """The stored tensors of which a stack of plain weights is made.

    Attributes:
        names: canonical names: one tensor of all experts, or one for each.
        half: of a fused one, which half of its rows: 0 or 1; None: it is whole.
    """

    names: tuple[str, ...]
    half: int | None = None


def expert_module(name: str) -> str | None:
    """Return the canonical name of what holds the stacks that a tensor of routed experts is of; None: it is of none.

    Args:
        name: canonical name of the tensor, in any layout.
    """
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part in STACK_MODULES:
            return ".".join(parts[: index + 1])
    if "experts" not in parts:
        return None
    end = parts.index("experts")
    outer = ".".join(parts[:end])
    return f"{outer}.switch_mlp" if outer.endswith(".mlp") else f"{outer}.experts.switch_glu"


def unnumbered(name: str) -> str:
    """Return what the tensors of a layer's experts share of their names, where each has one of its own; else `name`."""
    return _NUMBER.sub(".experts.", name)


def source_of(tensors: Mapping[str, TensorInfo], shape: ExpertsShape, kind: Kind) -> StackSource:
    """Return what a stack is made of; the canonical name where the checkpoint has none of the layouts."""
    outer = shape.unstacked
    if f"{outer}.0.{kind}.weight" in tensors:
        return StackSource(tuple(f"{outer}.{expert}.{kind}.weight" for expert in range(shape.num_experts)))
    if kind == "down_proj" and f"{outer}.down_proj" in tensors:
        return StackSource((f"{outer}.down_proj",))
    if kind != "down_proj" and f"{outer}.gate_up_proj" in tensors:
        return StackSource((f"{outer}.gate_up_proj",), KINDS.index(kind))
    return StackSource((f"{shape.module}.{kind}.weight",))
