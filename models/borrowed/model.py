"""A model of mlx-lm's behind the interface of text models, and the cache that its rows keep in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx

from models.borrowed.stores import BorrowedKeysStore, BorrowedStore, LayerCache, arrays_within
from models.errors import ModelError
from models.layers.cache import AttentionLayer, Step
from models.layers.caches import Room
from models.layers.row_cache import RowCache
from models.step import RowPlan, StepPlan

Store = BorrowedStore | BorrowedKeysStore
# Token ids [1, T] and the caches of a sequence to logits [1, T, V].
Graph = Callable[..., mx.array]


class BorrowedError(ModelError):
    """Raised when a model of mlx-lm's is stepped as one of ours."""


class BorrowedStep(Step):
    """A step whose rows mlx-lm computes one by one: each with its own caches, logits where they are asked for alone."""

    def __init__(self, plan: StepPlan, tokens: mx.array, cache: RowCache[Store]) -> None:
        super().__init__(plan, tokens)
        self._cache = cache

    def stores(self, row: RowPlan) -> list[Store]:
        """Return what the model keeps of a row; raises `PlanError` where the step is no longer open."""
        self._cache.slots.check_open(row.slot, self)
        return self._cache.stores(row.slot)

    def select(self, hidden: mx.array) -> mx.array:
        """Return what `BorrowedModel.hidden` gives: nothing that the plan does not ask for."""
        return hidden

    def state(self) -> list[mx.array]:
        """See `Step.state`."""
        return [array for row in self.plan.rows for store in self._cache.stores(row.slot) for array in store.arrays()]


class BorrowedModel:
    """A text model whose graph is mlx-lm's.

    Its head is not apart from the rest: `hidden` gives logits, of those positions alone that the step asks for, and
    `head` nothing new. What a prompt's inner tokens would give is never computed.

    Args:
        graph: the model.
        make_caches: returns empty caches for one sequence, in the order of the graph.
        word: of the architecture and what computes it, for a cache's fingerprint.
        compiles: whether mlx-lm's compiled parts are compiled: on the CPU that calls a C++ compiler.

    Attributes:
        dtype: of keys, values and logits.
        shares_prefixes: whether other sequences can begin behind what a sequence leaves: its caches are all plain.
    """

    def __init__(
        self, graph: Graph, make_caches: Callable[[], Sequence[LayerCache]], word: str, *, compiles: bool
    ) -> None:
        self._graph = graph
        self._make_caches = make_caches
        self._word = word
        self._compiles = compiles
        caches = make_caches()
        self.dtype = self._forward(mx.zeros((1, 1), dtype=mx.int32), caches).dtype
        self.shares_prefixes = all(_is_plain(cache) for cache in caches)
        self._kept = [tuple(_kept(leaf, self.dtype) for leaf in _leaves(cache)) for cache in caches]

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """What each layer keeps, as if it were keys and values; a state of fixed size has a window of one token."""
        return tuple(layer for layers in self._kept for layer in layers)

    def make_cache(self, room: Room) -> RowCache[Store]:
        """Return an empty cache whose rows are mlx-lm's caches."""
        firsts = [layers[0] for layers in self._kept]
        return RowCache(firsts, room.num_slots, room.tokens, BorrowedStep, self._make_store, self._word)

    def hidden(self, step: Step) -> mx.array:
        """Compute the logits that the step asks for, [1, M, V], and add its tokens to the caches.

        Raises:
            BorrowedError: the step is of a cache of another model.
        """
        if not isinstance(step, BorrowedStep):
            raise BorrowedError("the step is not one of a model of mlx-lm's")
        found: list[mx.array] = []
        for row, span in zip(step.plan.rows, step.spans, strict=True):
            tokens = step.tokens[:, span.first : span.first + span.count]
            found.extend(self._row(row, tokens, step.stores(row)))
        if not found:
            return mx.zeros((1, 0, 1), dtype=self.dtype)
        return found[0] if len(found) == 1 else mx.concatenate(found, axis=1)

    def head(self, hidden: mx.array) -> mx.array:
        """Return `hidden`, which are logits."""
        return hidden

    def _row(self, row: RowPlan, tokens: mx.array, stores: Sequence[Store]) -> Iterator[mx.array]:
        """Yield logits [1, M, V] where a row asks for some; what comes before the first of them leaves keys alone."""
        caches = [store.cache for store in stores]
        first = row.logits_at[0] if row.logits_at else row.num_tokens
        if first:
            self._forward(tokens[:, :first], caches)
        if row.logits_at:
            logits = self._forward(tokens[:, first:], caches)
            places = [place - first for place in row.logits_at]
            yield logits if len(places) == logits.shape[1] else logits[:, mx.array(places, dtype=mx.int32)]
        for store in stores:
            store.add(row.num_tokens)

    def _forward(self, tokens: mx.array, caches: Sequence[LayerCache]) -> mx.array:
        with _as_written(compiles=self._compiles):
            return self._graph(tokens, cache=caches)

    def _make_store(self, number: int) -> Store:
        def make() -> LayerCache:
            return self._make_caches()[number]

        return BorrowedKeysStore(make) if _is_plain(make()) else BorrowedStore(make)


@contextmanager
def _as_written(*, compiles: bool) -> Generator[None]:
    """Build a graph of operations as they are written, where nothing is to be compiled."""
    if compiles:
        yield
        return
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def _is_plain(cache: LayerCache) -> bool:
    """Tell whether a cache is keys and values in the order of tokens and nothing else."""
    kind = cast("type[object]", type(cache))
    return kind.__name__ == "KVCache" and kind.__module__ == "mlx_lm.models.cache"


def _leaves(cache: LayerCache) -> list[LayerCache]:
    """Return the caches within a layer's."""
    inner: object = getattr(cache, "caches", None)
    if not isinstance(inner, list | tuple):
        return [cache]
    return [leaf for each in cast("Sequence[LayerCache]", inner) for leaf in _leaves(each)]


def _kept(cache: LayerCache, dtype: mx.Dtype) -> AttentionLayer:
    """Return what a cache that has seen one token takes, as heads of keys and values."""
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if isinstance(keys, mx.array) and isinstance(values, mx.array) and keys.ndim == 4:
        num_heads, width = keys.shape[1], keys.shape[3] + values.shape[3]
        window: Any = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None)
        return AttentionLayer(num_heads, num_heads, -(-width // 2), 1.0, window)
    num_bytes = sum(array.nbytes for array in arrays_within(cache.state))
    return AttentionLayer(1, 1, max(1, -(-num_bytes // (2 * dtype.size))), 1.0, 1)
