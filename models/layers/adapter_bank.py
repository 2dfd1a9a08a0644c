"""Adapters in the memory of a model, and what each step adds of them.

An adapter lies in a slot from its mounting to its unmounting, and the number of a slot is never used again: a plan that
names one that is gone fails and never gets another's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from models.adapters.adapter import Adapter, LayerNumbers
from models.adapters.target import AdapterTarget
from models.checkpoint.raw_arrays import array_of
from models.errors import PlanError
from models.layers.arithmetic import Arithmetic
from models.layers.cache import Step
from models.layers.low_rank import Addition, LowRank, LowRankShare
from models.step import AdapterUse, RowPlan

# Compositions of steps that are kept: of the rows that decode, and of the chunks of prompts between. They may hold
# copies of factors, see `models.layers.mlx_low_rank`.
_KEPT_COMPOSITIONS = 2

_Composition = tuple[tuple[tuple[AdapterUse, ...], int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    matrices: LowRank
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class _Mounted:
    layers: Mapping[str, _Layer]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Use:
    """One adapter, and the tokens that use it with one scale; None: all of the step."""

    adapter: _Mounted
    scale: float
    tokens: tuple[int, ...] | None


class AdapterBank:
    """The adapters of one model; belongs to the thread that steps it.

    Args:
        targets: the layers that adapters may change, by their modules.
        arithmetic: what computes.

    Attributes:
        targets: as given.
        nbytes: of the mounted matrices; read on any thread.
    """

    def __init__(self, targets: Mapping[str, AdapterTarget], arithmetic: Arithmetic) -> None:
        self.targets = targets
        self.nbytes = 0
        self._arithmetic = arithmetic
        self._mounted: dict[int, _Mounted] = {}
        self._next_slot = 1
        self._compositions: dict[_Composition, BankedAdapters] = {}

    def mount(self, adapter: Adapter) -> int:
        """Bring an adapter that was checked against `targets` into memory; return its slot, at least 1.

        Raises:
            RuntimeError: there is no memory for it; nothing has changed then.
        """
        layers = {module: self._layer(numbers) for module, numbers in adapter.layers.items()}
        arrays = [array for layer in layers.values() for array in (layer.matrices.down, layer.matrices.up)]
        mx.eval(arrays)  # pyright: ignore[reportUnknownMemberType]
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        self._mounted[slot] = _Mounted(layers, sum(array.nbytes for array in arrays))
        self.nbytes += self._mounted[slot].nbytes
        return slot

    def unmount(self, slot: int) -> int:
        """Let an adapter go that no step uses any more; return the bytes that are free again.

        Raises:
            PlanError: the slot is empty.
        """
        mounted = self._of(slot)
        del self._mounted[slot]
        self._compositions.clear()
        self.nbytes -= mounted.nbytes
        return mounted.nbytes

    def exchange(self, adapter: Adapter, slots: Sequence[int]) -> int:
        """Mount an adapter in place of others, and return its slot: they go once it is there.

        Raises:
            RuntimeError: there is no memory for it; nothing has changed then.
            PlanError: a slot is empty.
        """
        slot = self.mount(adapter)
        for other in slots:
            self.unmount(other)
        return slot

    def serve(self, step: Step) -> None:
        """Give a step what its rows use; nothing where no row uses any.

        Raises:
            PlanError: a row names a slot that is empty.
        """
        if not step.adapters.are_used:
            return
        rows = step.plan.rows
        composition = tuple((row.adapters, row.num_tokens) for row in rows)
        adapters = self._compositions.pop(composition, None)
        if adapters is None:
            uses = [_Use(self._of(use.slot), use.scale, tokens) for use, tokens in _uses(rows)]
            adapters = BankedAdapters(uses, self._arithmetic)
        self._compositions[composition] = adapters  # the latest is the last
        while len(self._compositions) > _KEPT_COMPOSITIONS:
            del self._compositions[next(iter(self._compositions))]
        step.adapters.bring(adapters)

    def _of(self, slot: int) -> _Mounted:
        if slot not in self._mounted:
            raise PlanError(-1, f"no adapter is mounted in slot {slot}")
        return self._mounted[slot]

    def _layer(self, numbers: LayerNumbers) -> _Layer:
        a, b = (array_of(x, are_bits=bits) for x, bits in zip((numbers.a, numbers.b), numbers.is_bfloat16, strict=True))
        if numbers.is_transposed:
            a, b = a.T, b.T
        return _Layer(self._arithmetic.low_rank(a, b), numbers.scale)


class BankedAdapters:
    """What the rows of one step use of the adapters of a bank.

    Args:
        uses: in the order in which each token adds them.
        arithmetic: what computes.
    """

    def __init__(self, uses: Sequence[_Use], arithmetic: Arithmetic) -> None:
        self._uses = uses
        self._arithmetic = arithmetic
        self._additions: dict[str, Addition | None] = {}

    def of(self, module: str) -> Addition | None:
        """See `StepAdapters.of`."""
        if module not in self._additions:
            self._additions[module] = self._addition(module)
        return self._additions[module]

    def _addition(self, module: str) -> Addition | None:
        shares: list[LowRankShare] = []
        for use in self._uses:
            layer = use.adapter.layers.get(module)
            if layer is not None:
                shares.append(LowRankShare(layer.matrices, layer.scale * use.scale, use.tokens))
        return self._arithmetic.low_rank_sum(shares) if shares else None


def _uses(rows: Sequence[RowPlan]) -> list[tuple[AdapterUse, tuple[int, ...] | None]]:
    """Bring tokens together that use the same, first what each row adds first; None: all tokens."""
    tokens: dict[tuple[int, AdapterUse], list[int]] = {}
    first = 0
    for row in rows:
        for place, use in enumerate(row.adapters):
            tokens.setdefault((place, use), []).extend(range(first, first + row.num_tokens))
        first += row.num_tokens
    in_order = sorted(tokens.items(), key=lambda entry: entry[0][0])
    return [(use, None if len(found) == first else tuple(found)) for (_, use), found in in_order]
