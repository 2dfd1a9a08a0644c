"""Which cache a model gets."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from models.checkpoint.kv_scheme import KVScheme
from models.layers.arithmetic import Arithmetic
from models.layers.cache import AttentionLayer, Cache
from models.layers.paged_cache import PagedCache
from models.layers.row_cache import RowCache
from models.layers.stores.make import store_maker

# Where nobody says how much: memory is taken as it is used.
DEFAULT_SLOT_TOKENS = 1 << 15


def make_cache(
    layers: Sequence[AttentionLayer],
    arithmetic: Arithmetic,
    dtype: mx.Dtype,
    scheme: KVScheme,
    num_slots: int,
    num_tokens: int | None = None,
) -> Cache:
    """Return an empty cache.

    Args:
        layers: the model's, in order.
        arithmetic: the model's.
        dtype: that the model computes in.
        scheme: how keys and values are kept.
        num_slots: sequences.
        num_tokens: of all sequences and parts together.

    Raises:
        KVSchemeError: the layers cannot keep them so.
    """
    num_tokens = num_slots * DEFAULT_SLOT_TOKENS if num_tokens is None else num_tokens
    if arithmetic.is_paged and scheme.is_plain:
        return PagedCache(layers, num_slots, num_tokens)
    maker = store_maker(scheme, layers, dtype)
    return RowCache(layers, num_slots, num_tokens, arithmetic, maker, f"{scheme.word} {dtype}")
