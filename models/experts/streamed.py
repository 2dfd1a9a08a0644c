"""Routed experts of which only some are in memory: a step has the others read, and computes meanwhile.

    start    the router's choice is waited for; missing experts begin to be read; those that are there compute
    answers  what stands beside the experts computes; then wave after wave of experts, each as it has been read

A slot is leased until what reads it is computed. For small answers that is not waited for here: the next layer has to
wait for its router's choice, which hangs on them.

On the CPU a wave gives the bits that all experts in memory give, by MLX and by kernels of our own. On a GPU MLX chooses
among kernels by the number of pairs of a token and an expert, so there a prompt's last bits may hang on the waves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from models.errors import ExpertsError
from models.experts.expert_slab import ExpertSlab
from models.experts.residency import Passage
from models.layers.arithmetic import ExpertsProduct
from models.layers.experts import Answers

# Larger answers are computed before the next layer begins, so that two layers' are never in memory.
_DEFERRED_BYTES = 1 << 20

_Numbers = npt.NDArray[np.integer]


@dataclass(slots=True)
class Lease:
    """Slots that a computation reads.

    Attributes:
        slab: of the slots.
        passage: that leased them.
        experts: with their slots.
        reader: what is computed with them; not evaluated.
    """

    slab: ExpertSlab
    passage: Passage
    experts: Mapping[int, int]
    reader: mx.array


@dataclass(slots=True)
class Begun:
    """A layer's passage that is under way.

    Attributes:
        slab: of its slots.
        passage: it.
        unread: experts that are leased and that nothing computes with yet, with their slots.
    """

    slab: ExpertSlab
    passage: Passage
    unread: Mapping[int, int]


@dataclass(slots=True)
class Leases:
    """What the layers of one model have leased, and the passage that is under way.

    Attributes:
        held: leases by readers that may not be computed yet.
        open: of the layer that has started and not answered; None: there is none.
    """

    held: list[Lease] = field(default_factory=list[Lease])
    open: Begun | None = None

    def settle(self, *wanted: mx.array) -> None:
        """Wait for arrays and for all readers, and give the leases back; also where computing fails."""
        held, self.held = self.held, []
        try:
            mx.eval(*wanted, *(lease.reader for lease in held))  # pyright: ignore[reportUnknownMemberType]
        finally:
            for lease in held:
                lease.slab.release(lease.passage, lease.experts)

    def give_up(self) -> None:
        """End the passage that is under way, and everything that was leased for it."""
        begun, self.open = self.open, None
        if begun is not None:
            begun.slab.give_up(begun.passage)
            begun.slab.release(begun.passage, begun.unread)
        self.settle()


class StreamedExperts:
    """The routed experts of one layer, some of them in the slots of a slab.

    Args:
        layer: number of the layer within its slab.
        leases: of the model.
        note: told how many tokens were sent to each expert.
    """

    def __init__(self, layer: int, leases: Leases, note: Callable[[Mapping[int, int]], None]) -> None:
        self._layer = layer
        self._leases = leases
        self._note = note
        self._slab: ExpertSlab | None = None
        self._product: ExpertsProduct | None = None

    def place(self, slab: ExpertSlab | None, product: ExpertsProduct | None) -> None:
        """Give the layer its slab, whose size is known once all layers are, or take it away.

        Args:
            slab: of the layer's geometry.
            product: what gives tokens to experts by their slots.
        """
        self._slab, self._product = slab, product

    def start(self, x: mx.array, indices: mx.array) -> Answers:
        """See `Experts.start`.

        Raises:
            ExpertUnreadable: an expert cannot be read; or when the answers are taken.
            ExpertsError: there are no slots: not yet, or no more.
        """
        if self._slab is None or self._product is None:
            raise ExpertsError("the experts of this model have no slots")
        if self._leases.open is not None:
            self._leases.give_up()  # of a step that failed between a question and its answers
        self._leases.settle(indices)
        numbers = cast("_Numbers", np.array(indices))
        tokens = Counter[int](numbers.ravel().tolist())  # in the order of who asks
        self._note(tokens)
        question = _Question(self._product, self._leases, x, numbers)
        question.ask(self._slab, self._layer, tokens)
        return question.answers


class _Question:
    """What the tokens of one step ask the experts of one layer."""

    def __init__(self, product: ExpertsProduct, leases: Leases, x: mx.array, numbers: _Numbers) -> None:
        self._product = product
        self._leases = leases
        self._x = x
        self._shape = numbers.shape  # [1, N, k]
        self._numbers = numbers.ravel()
        # Of each part: which of the N * k pairs it answers, and the answers [pairs, E].
        self._parts: list[tuple[_Numbers, mx.array]] = []

    def ask(self, slab: ExpertSlab, layer: int, experts: Iterable[int]) -> None:
        """Begin the passage, and compute what can be while the rest is read."""
        passage = slab.begin(layer, experts)
        self._leases.open = Begun(slab, passage, passage.hits)
        try:
            if passage.num_missing:
                slab.read(passage)
            if passage.hits:
                self._compute(passage.hits, is_ahead=passage.num_missing > 0)
        except Exception:
            self._leases.give_up()
            raise

    def answers(self, *beside: mx.array) -> mx.array:
        """See `Answers`."""
        try:
            if beside:
                mx.async_eval(*beside)  # pyright: ignore[reportUnknownMemberType]
            self._take_waves()
            answers = self._joined()
            if answers.nbytes > _DEFERRED_BYTES:
                self._leases.settle(answers)
        except Exception:
            self._leases.give_up()
            raise
        self._leases.open = None
        return answers

    def _take_waves(self) -> None:
        begun = self._opened()
        slab, passage = begun.slab, begun.passage
        while passage.num_missing:
            if not passage.reading:
                self._leases.settle()  # what is leased has to go first
                slab.read(passage)
            wave = begun.unread = slab.wait(passage)
            self._leases.settle()  # the wave before; it was computed while this one was read
            slab.read(passage)
            self._compute(wave, is_ahead=passage.num_missing > 0)
        passage.finish()

    def _compute(self, experts: Mapping[int, int], *, is_ahead: bool) -> None:
        """Have the pairs of some experts answered.

        Args:
            experts: with their slots.
            is_ahead: whether something is waited for next, so that computing should begin.
        """
        begun = self._opened()
        of_expert = np.full(begun.slab.num_experts, -1, np.int32)
        of_expert[list(experts)] = list(experts.values())
        slots = of_expert[self._numbers]
        chosen = np.flatnonzero(slots >= 0)
        per_token = self._shape[-1]
        if chosen.size == slots.size:
            answers = mx.flatten(self._product(self._x, mx.array(slots.reshape(self._shape))), 0, 2)
        else:
            rows = self._x[:, mx.array(chosen // per_token)]  # [1, N, E] -> [1, pairs, E]
            answers = self._product(rows, mx.array(slots[chosen].reshape(1, -1, 1)))[0, :, 0]  # -> [pairs, E]
        self._parts.append((chosen, answers))
        self._leases.held.append(Lease(begun.slab, begun.passage, experts, answers))
        begun.unread = {}
        if is_ahead:
            mx.async_eval(answers)  # pyright: ignore[reportUnknownMemberType]

    def _joined(self) -> mx.array:
        """Return the answers [1, N, k, E] in the order of the pairs."""
        if len(self._parts) == 1:
            answers = self._parts[0][1]
        else:
            order = np.argsort(np.concatenate([chosen for chosen, _ in self._parts]))
            answers = mx.concatenate([part for _, part in self._parts])[mx.array(order.astype(np.int32))]
        return mx.reshape(answers, (*self._shape, -1))

    def _opened(self) -> Begun:
        if self._leases.open is None:
            raise ExpertsError("answers are taken after the step has failed")
        return self._leases.open
