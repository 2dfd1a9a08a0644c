"""What a trace says of the memory that a model's experts need.

How few do most of the work, how many a stretch of text needs, and whether those stay the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from gateway.cli.trace_file import RouterChoice

# Tokens of the stretches whose experts are counted.
STRETCHES = (1, 8, 64, 512, 4096)
# Shares of a layer's experts that are kept.
KEPT_SHARES = (0.0625, 0.125, 0.25, 0.5, 0.75)
# Shares of the work that some experts do.
WORK_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Different experts of a layer that stretches of text need.

    Attributes:
        tokens: of each stretch.
        mean: of all whole stretches and layers.
        largest: of them.
    """

    tokens: int
    mean: float
    largest: int


@dataclass(frozen=True, slots=True)
class Stability:
    """What became of the experts of a layer that were used most in a window of time, in the next.

    Attributes:
        experts: of a layer that are kept.
        overlap: the share of them that is among the most used again.
        hits: the share of the next window's work that they do.
        least_hits: of any layer and window.
    """

    experts: int
    overlap: float
    hits: float
    least_hits: float


@dataclass(slots=True)
class _Layer:
    """What is counted of one layer.

    Attributes:
        total: how often each expert was chosen.
        num_tokens: that were routed.
        windows: how often each expert was chosen in each window of time.
        stretches: by tokens of a stretch, the experts of the one that runs.
        sizes: by tokens of a stretch, how many experts the whole ones needed.
    """

    total: Counter[int] = field(default_factory=Counter[int])
    num_tokens: int = 0
    windows: list[Counter[int]] = field(default_factory=list[Counter[int]])
    stretches: dict[int, set[int]] = field(default_factory=lambda: {tokens: set[int]() for tokens in STRETCHES})
    sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict[int, list[int]](list))


class TraceSummary:
    """Sums up choices one by one.

    Args:
        window_tokens: of a window of time.
        num_experts: of a layer; None: as many as the highest id says.
    """

    def __init__(self, window_tokens: int, num_experts: int | None = None) -> None:
        self.window_tokens = window_tokens
        self.num_choices = 0
        self.num_chosen = 0
        self._num_experts = num_experts or 0
        self._layers: dict[int, _Layer] = {}

    @property
    def num_layers(self) -> int:
        """Layers with experts."""
        return len(self._layers)

    @property
    def num_tokens(self) -> int:
        """Tokens that the layers routed, at most."""
        return max((layer.num_tokens for layer in self._layers.values()), default=0)

    @property
    def num_experts(self) -> int:
        """Experts of a layer."""
        return self._num_experts

    @property
    def num_used(self) -> float:
        """Different experts of a layer that were chosen at all, on average."""
        return _mean([len(layer.total) for layer in self._layers.values()])

    def add(self, choice: RouterChoice) -> None:
        """Count a choice."""
        self.num_choices += 1
        self.num_chosen = max(self.num_chosen, choice.num_chosen)
        self._num_experts = max(self._num_experts, 1 + max(choice.ids, default=-1))
        layer = self._layers.setdefault(choice.layer, _Layer())
        for begin in range(0, len(choice.ids), choice.num_chosen):
            self._add_token(layer, choice.ids[begin : begin + choice.num_chosen])

    def coverage(self) -> Iterator[tuple[int, float]]:
        """Yield, for each number of experts of a layer, what share of the work the most used ones do."""
        of_rank = [0] * self.num_experts
        for layer in self._layers.values():
            for rank, count in enumerate(sorted(layer.total.values(), reverse=True)):
                of_rank[rank] += count
        work = sum(of_rank)
        for experts, done in enumerate(accumulate(of_rank), start=1):
            yield experts, done / work if work else 0.0

    def needed(self) -> Iterator[tuple[float, int]]:
        """Yield, for shares of the work, how many experts of a layer do it."""
        points = list(self.coverage())
        for share in WORK_SHARES:
            found = next((experts for experts, covered in points if covered >= share), None)
            if found is not None:
                yield share, found

    def working_sets(self) -> Iterator[WorkingSet]:
        """Yield what stretches of text need, as far as the trace has whole ones of that length."""
        for tokens in STRETCHES:
            sizes = [size for layer in self._layers.values() for size in layer.sizes[tokens]]
            if sizes:
                yield WorkingSet(tokens, _mean(sizes), max(sizes))

    def stability(self) -> Iterator[Stability]:
        """Yield how good the experts of one window of time are for the next; nothing where there is one window."""
        pairs = list(self._neighbours())
        for experts in dict.fromkeys(max(1, round(share * self.num_experts)) for share in KEPT_SHARES):
            found = [_compared(before, after, experts) for before, after in pairs]
            if found:
                hits = [each[1] for each in found]
                yield Stability(experts, _mean([each[0] for each in found]), _mean(hits), min(hits))

    def _add_token(self, layer: _Layer, ids: Sequence[int]) -> None:
        if layer.num_tokens % self.window_tokens == 0:
            layer.windows.append(Counter())
        layer.total.update(ids)
        layer.windows[-1].update(ids)
        layer.num_tokens += 1
        for tokens, running in layer.stretches.items():
            running.update(ids)
            if layer.num_tokens % tokens == 0:
                layer.sizes[tokens].append(len(running))
                running.clear()

    def _neighbours(self) -> Iterator[tuple[Counter[int], Counter[int]]]:
        """Yield each window of each layer with the next; one that is not over has too little to say."""
        for layer in self._layers.values():
            whole = layer.windows[: layer.num_tokens // self.window_tokens]
            yield from pairwise(whole)


def summed_up(choices: Iterable[RouterChoice], summary: TraceSummary) -> TraceSummary:
    """Add all choices to a summary and return it."""
    for choice in choices:
        summary.add(choice)
    return summary


def _compared(before: Counter[int], after: Counter[int], experts: int) -> tuple[float, float]:
    """Return which share of the most used experts stays, and which share of the work after they do."""
    kept, wanted = (_most_used(window, experts) for window in (before, after))
    overlap = len(kept & wanted) / max(len(kept), len(wanted))
    return overlap, sum(after[each] for each in kept) / after.total()


def _most_used(window: Counter[int], experts: int) -> set[int]:
    """Return the most used; of equals, lower ids."""
    return set(sorted(window, key=lambda each: (-window[each], each))[:experts])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
