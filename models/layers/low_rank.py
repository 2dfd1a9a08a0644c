"""Products of two narrow matrices, which adapters add to what linear layers give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from models.errors import PlanError
from models.step import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """One adapter's two matrices for one layer, laid out as the arithmetic that made it multiplies with them.

    Attributes:
        down: of what the layer reads, [inputs, rank] or transposed.
        up: of what it gives, [rank, outputs].
    """

    down: mx.array
    up: mx.array


@dataclass(frozen=True, slots=True, eq=False)
class LowRankShare:
    """What some tokens of a step add to one layer.

    Attributes:
        matrices: of the adapter.
        scale: multiplies their product.
        tokens: which of the step's; None: all of them.
    """

    matrices: LowRank
    scale: float
    tokens: tuple[int, ...] | None


# The inputs [1, N, inputs] and outputs [1, N, outputs] of a layer to its outputs with what is added.
Addition = Callable[[mx.array, mx.array], mx.array]


def disjoint_runs(shares: Sequence[LowRankShare]) -> list[list[LowRankShare]]:
    """Cut shares where a token would come a second time."""
    runs: list[list[LowRankShare]] = []
    seen: set[int] = set()
    for share in shares:
        if not runs or share.tokens is None or runs[-1][-1].tokens is None or not seen.isdisjoint(share.tokens):
            runs.append([])
            seen.clear()
        runs[-1].append(share)
        seen.update(share.tokens or ())
    return runs


def chained(additions: Sequence[Addition]) -> Addition:
    """Return what adds one after the other."""
    if len(additions) == 1:
        return additions[0]

    def add(x: mx.array, y: mx.array) -> mx.array:
        for addition in additions:
            y = addition(x, y)
        return y

    return add


class StepAdapters(Protocol):
    """What the rows of one step use of adapters."""

    def of(self, module: str, /) -> Addition | None:
        """Return what is added to a layer; None: nothing, by any row."""
        ...


class RowAdapters:
    """What the rows of a step use of adapters: nothing, or what their bank has brought.

    Args:
        plan: of the step.

    Attributes:
        are_used: whether any row uses any.
    """

    def __init__(self, plan: StepPlan) -> None:
        self.are_used = any(row.adapters for row in plan.rows)
        self._brought: StepAdapters | None = None

    def bring(self, adapters: StepAdapters) -> None:
        """Bring what the plan's rows use."""
        self._brought = adapters

    def of(self, module: str) -> Addition | None:
        """Return what is added to a layer; None: nothing.

        Raises:
            PlanError: rows use some, and nobody has brought them: what came out would be the model's own.
        """
        if not self.are_used:
            return None
        if self._brought is None:
            raise PlanError(-1, "the step was not given the adapters of its rows")
        return self._brought.of(module)
