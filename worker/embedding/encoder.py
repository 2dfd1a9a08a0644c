"""Computes pieces of inputs in one forward, and keeps what is wanted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx
import numpy as np

from models.embedding.vectors import Floats
from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import RowPlan, StepPlan
from native import kernels
from worker.idle_memory import bound_pool, give_back


class KernelBrokenError(RuntimeError):
    """Raised when a kernel could not go on: what it should have stored may be missing to any input under way."""


@dataclass(frozen=True, slots=True)
class EncodePiece:
    """What is computed of one input.

    Attributes:
        slot: that the input holds.
        token_ids: the next of its tokens.
        start: number of the first.
        wanted: which of them something is wanted of, numbered from the first, ascending.
    """

    slot: int
    token_ids: tuple[int, ...]
    start: int
    wanted: tuple[int, ...]


class Encoder:
    """A model with room for the inputs of one step, and for those that are cut; belongs to the engine's thread.

    Args:
        loaded: the model.
        cache: with a slot for each input under way.
        answers: tokens whose logits are wanted; None: hidden states are.

    Attributes:
        cache: as given.
    """

    def __init__(self, loaded: LoadedModel, cache: Cache, answers: tuple[int, ...] | None = None) -> None:
        self.cache = cache
        self._model = loaded.model
        self._answers = None if answers is None else mx.array(answers, dtype=mx.int32)
        bound_pool(loaded)

    def encode(self, pieces: Sequence[EncodePiece]) -> list[Floats]:
        """Compute pieces in one step.

        Returns:
            For each piece float32 [n, E], the hidden states that are wanted, or [n, answers], their logits.

        Raises:
            KernelBrokenError: in this step.
        """
        rows = tuple(RowPlan(each.slot, each.token_ids, each.start, each.wanted) for each in pieces)
        step = self.cache.begin(StepPlan(rows))
        hidden = self._model.hidden(step)
        found = np.zeros((0, 0), dtype=np.float32)
        if any(each.wanted for each in pieces):
            found = self._read(step.select(hidden))
        else:
            mx.eval(step.state())  # pyright: ignore[reportUnknownMemberType]
        for row in rows:
            self.cache.commit(row.slot, row.num_tokens)
        if (problem := kernels.take_failure()) is not None:
            raise KernelBrokenError(problem)
        ends = list(accumulate(len(each.wanted) for each in pieces))
        return [found[end - len(each.wanted) : end] for each, end in zip(pieces, ends, strict=True)]

    def release(self, slot: int) -> None:
        """Empty the slot of an input that is done or given up."""
        self.cache.release(slot)

    def rest(self) -> None:
        """Give back to the system what idling needs no memory for."""
        give_back(self.cache)

    def _read(self, hidden: mx.array) -> Floats:
        """Wait for what is wanted of hidden states [1, M, E]."""
        if self._answers is not None:
            hidden = self._model.head(hidden)[:, :, self._answers]  # [1, M, E] -> [1, M, answers]
        return np.array(hidden[0].astype(mx.float32), dtype=np.float32)
