"""Which cache a model gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.kv_sizes import KVSizes
from models.layers.arithmetic import Arithmetic
from models.layers.cache import AttentionLayer, Cache, KeptLayer
from models.layers.paged_cache import PagedCache
from models.layers.recurrence import RecurrentLayer
from models.layers.row_cache import RowCache, RowStep, RowStore
from models.layers.stores.make import store_maker
from models.layers.stores.state import StateStore

# Where nobody says how much: memory is taken as it is used.
DEFAULT_SLOT_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True)
class Room:
    """For how much a cache has room, and in which order.

    Attributes:
        num_slots: sequences.
        num_tokens: of all sequences together; None: as many as come.
        num_part_tokens: of all parts together, where they share memory with sequences.
        windows_turn: whether windows keep mlx-lm's order of tokens, where they are not paged.
    """

    num_slots: int
    num_tokens: int | None = None
    num_part_tokens: int = 0
    windows_turn: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens all sequences may be promised together."""
        return self.num_slots * DEFAULT_SLOT_TOKENS if self.num_tokens is None else self.num_tokens


def make_cache(
    layers: Sequence[KeptLayer],
    arithmetic: Arithmetic,
    dtype: mx.Dtype,
    scheme: KVScheme,
    room: Room,
) -> Cache:
    """Return an empty cache.

    Args:
        layers: the model's, in order.
        arithmetic: the model's.
        dtype: that the model computes in.
        scheme: how keys and values are kept.
        room: for how much.

    Raises:
        KVSchemeError: the layers cannot keep them so.
    """
    num_tokens = room.tokens
    attending = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    if arithmetic.is_paged and scheme.is_plain and len(attending) == len(layers):
        return PagedCache(attending, room.num_slots, num_tokens, room.num_part_tokens)
    keys_maker = store_maker(scheme, layers, dtype, windows_turn=room.windows_turn)
    sizes = KVSizes.of(layers, scheme, dtype.size)

    def maker(number: int) -> RowStore:
        if isinstance(layers[number], RecurrentLayer):
            return StateStore(sizes.mark_blocks, sizes.num_marks)
        return keys_maker(number)

    make_step = partial(RowStep, arithmetic=arithmetic)
    return RowCache(layers, room.num_slots, num_tokens, make_step, maker, f"{scheme.word} {dtype}")
