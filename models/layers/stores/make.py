"""Which store each layer of a model gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from models.checkpoint.kv_scheme import AffineKV, KVScheme, LayerKV, PlainKV, TurboKV
from models.checkpoint.kv_sizes import Heads, shape_of
from models.layers.stores.affine import AffineCodec
from models.layers.stores.coded import Codec, CodedStore
from models.layers.stores.full import FullStore
from models.layers.stores.store import Store
from models.layers.stores.turbo import TurboCodec
from models.layers.stores.window import WindowStore


def store_maker(
    scheme: KVScheme, layers: Sequence[Heads], dtype: mx.Dtype, *, windows_turn: bool = False
) -> Callable[[int], Store]:
    """Return what makes an empty store for the layer of a number; stores of like layers share a codec.

    A layer without keys and values has its number, and no store of these.

    Args:
        scheme: how keys and values are kept.
        layers: the model's, in order.
        dtype: that the model computes in.
        windows_turn: whether windows give their tokens in the order of a ring, as mlx-lm does.

    Raises:
        KVSchemeError: the model's layers cannot keep them so.
    """
    chosen = scheme.for_layers([shape_of(layer) for layer in layers])
    codecs: dict[tuple[LayerKV, int], Codec] = {}
    makers: list[Callable[[], Store]] = []
    for kv, layer in zip(chosen, layers, strict=True):
        if layer.window is not None:
            shape = (layer.num_kv_heads, layer.head_dim, dtype, layer.window)
            makers.append(partial(WindowStore, *shape, turns=windows_turn))
            continue
        key = (kv, layer.head_dim)
        if not isinstance(kv, PlainKV) and key not in codecs:
            codecs[key] = _codec(kv, layer.head_dim, dtype)
        makers.append(partial(_make, layer, dtype, codecs.get(key), 0 if isinstance(kv, PlainKV) else kv.start))
    return lambda number: makers[number]()


def _codec(kv: AffineKV | TurboKV, head_dim: int, dtype: mx.Dtype) -> Codec:
    if isinstance(kv, AffineKV):
        return AffineCodec(head_dim, dtype, kv.bits, kv.group_size)
    return TurboCodec(head_dim, dtype, kv.key_bits, kv.value_bits)


def _make(layer: Heads, dtype: mx.Dtype, codec: Codec | None, start: int) -> Store:
    plain = FullStore(layer.num_kv_heads, layer.head_dim, dtype)
    return plain if codec is None else CodedStore(codec, plain, layer.num_kv_heads, start)
