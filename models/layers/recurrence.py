"""Layers that keep a state of fixed size instead of keys and values: what a cache knows of them, how a step runs them.

A state cannot go back, so a layer hands it over at the places of a row's tokens where copies are kept, and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from models.checkpoint.kv_sizes import StateSize

# The arrays of one layer and sequence, each with a first axis of 1; never written to once it is made.
State = tuple[mx.array, ...]


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """What a cache has to know of a layer that keeps a state.

    Attributes:
        state: what it takes.
    """

    state: StateSize

    @property
    def num_kv_heads(self) -> int:
        """It keeps no keys."""
        return 0

    @property
    def head_dim(self) -> int:
        """The width of heads that it has not."""
        return 0

    @property
    def window(self) -> int | None:
        """It sees nothing again, near or far."""
        return None


@dataclass(frozen=True, slots=True)
class Walk:
    """One row's tokens in a step, and where its state is wanted on the way.

    Attributes:
        first: number of its first token among the step's.
        pieces: how many tokens come before each wanted state, one behind the other.
        state: before its first token; None: it has seen none.
    """

    first: int
    pieces: tuple[int, ...]
    state: State | None

    @property
    def count(self) -> int:
        """How many tokens it has."""
        return sum(self.pieces)


class Recurrence(Protocol):
    """What a layer computes of its inputs and of the states of rows."""

    def __call__(self, inputs: Sequence[mx.array], walks: Sequence[Walk]) -> tuple[mx.array, list[list[State]]]:
        """Go through the tokens of all rows.

        Args:
            inputs: of all rows, each [1, N, ...].
            walks: one for each row, in the order of their tokens, which are all N.

        Returns:
            What the layer gives, [1, N, ...], and for each row its state after each piece. Nothing is evaluated.
        """
        ...
