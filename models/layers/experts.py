"""What a mixture asks its experts: each token's answers of those that were chosen for it, not yet weighed.

An answer depends on its token and its expert alone. So experts may answer in any order and in any number of parts, and
the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from models.checkpoint.shards import MappedTensors
from models.checkpoint.stored_experts import StoredExperts
from models.layers.arithmetic import Activation, Arithmetic
from models.layers.expert_stacks import ExpertStacks

# Told of a layer's number and its choice, integers [1, N, k], not evaluated.
ObserveRouting = Callable[[int, mx.array], None]


class Answers(Protocol):
    """What was asked and is not yet answered; called once."""

    def __call__(self, *beside: mx.array) -> mx.array:
        """Return the answers.

        Args:
            beside: what does not depend on them, and may be computed while the bytes of experts are read.

        Returns:
            Compute dtype [1, N, k, E]: of each token the answer of each of its experts, in the order of `indices`.
        """
        ...


class Experts(Protocol):
    """The routed experts of one layer."""

    def start(self, x: mx.array, indices: mx.array, /) -> Answers:
        """Ask each token's experts, and go on with what does not depend on the answers.

        Args:
            x: [1, N, E].
            indices: integers [1, N, k], numbers of experts; those of one token differ.
        """
        ...


class StackedExperts:
    """Experts whose weights are all at hand: in memory, or in a file that is mapped."""

    def __init__(self, stacks: ExpertStacks, arithmetic: Arithmetic, activation: Activation) -> None:
        self.stacks = stacks
        self._answer = arithmetic.experts(stacks, activation)

    def start(self, x: mx.array, indices: mx.array) -> Answers:
        """See `Experts.start`."""
        answers = self._answer(x, indices)
        return lambda *_: answers


class ExpertsSource(Protocol):
    """Makes the experts of a model whose weights are not all at hand: they are read as they are needed.

    Such experts wait for the numbers of the chosen in every forward, which is no one graph then and is not recorded.
    """

    def experts(self, stored: StoredExperts, arithmetic: Arithmetic, activation: Activation, /) -> Experts | None:
        """Return the experts of a layer; None: they shall be stacks.

        Args:
            stored: where their bytes stand, and in which dtypes the arithmetic reads them.
            arithmetic: what computes with them.
            activation: of their gates.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpertsHooks:
    """What a model does with its routed experts beside computing with stacks of them.

    Attributes:
        source: makes experts that are read as they are needed; None: all are stacks.
        mapped: tensors of stacks that stay in their file, as far as the arithmetic reads them as stored; None: all are
            read.
        observe: told of every choice; None: nobody is.
    """

    source: ExpertsSource | None = None
    mapped: MappedTensors | None = None
    observe: ObserveRouting | None = None


NO_HOOKS = ExpertsHooks()
