"""What one step of a model computes, as plain data: which tokens of which sequences, and where logits are needed.

A plan can be made, compared and sent elsewhere without a tensor library. `models.layers.cache` turns it into what the
layers read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class NumericPath(Enum):
    """How the numbers of a model are computed.

    REFERENCE uses stock operations in the shapes of mlx-lm, and gives its logits bit for bit. FAST is what is served:
    the same function of the same weights, rounded in another order.
    """

    REFERENCE = "reference"
    FAST = "fast"


class AdapterUse(NamedTuple):
    """One mounted adapter of a row: the slot that it lies in, and what multiplies its own scale."""

    slot: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One sequence's part of a step.

    Attributes:
        slot: the cache slot that holds the sequence.
        token_ids: the tokens to add; None stands for the one token that the previous step sampled for this slot and
            that is still on the device.
        start: position of the first of them, which is the number of tokens committed in the slot before this step.
        logits_at: offsets within this row whose logits are needed, ascending; empty for an inner part of a prompt.
        adapters: those that apply, added in this order; empty: the model as it is.
    """

    slot: int
    token_ids: tuple[int, ...] | None
    start: int
    logits_at: tuple[int, ...]
    adapters: tuple[AdapterUse, ...] = ()

    @property
    def num_tokens(self) -> int:
        """How many tokens the row adds."""
        return 1 if self.token_ids is None else len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows that one forward pass computes together."""

    rows: tuple[RowPlan, ...]
