"""What keys and values take: of a token, of a sequence, of many sequences together; no MLX."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from models.checkpoint.dialects import FULL
from models.checkpoint.kv_scheme import KVScheme, LayerKV, LayerShape, PlainKV
from models.checkpoint.text_config import TextConfig


class KVLayer(NamedTuple):
    """A layer that keeps keys and values: its heads of them, their width, and how far it sees; None: to the start."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


class _Layer(Protocol):
    """What has to be known of a layer; `models.layers.cache.AttentionLayer` is one."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def window(self) -> int | None: ...


def kv_layers(text: TextConfig) -> tuple[KVLayer, ...]:
    """Return each layer of a model that keeps keys and values of its own.

    The trailing layers of a Gemma 4 that look at an earlier one's keep none, and where its layers see everything they
    have heads of another width.
    """
    if text.model_type != "gemma4_text":
        return tuple(KVLayer(text.num_key_value_heads, text.head_dim, window) for window in text.windows)
    num_own = text.num_hidden_layers - text.num_kv_shared_layers
    full_heads = text.num_global_key_value_heads if text.is_key_value else text.num_key_value_heads
    full = KVLayer(full_heads, text.global_head_dim)
    sliding = KVLayer(text.num_key_value_heads, text.head_dim, text.sliding_window)
    return tuple(full if kind == FULL else sliding for kind in text.layer_types[:num_own])


@dataclass(frozen=True)
class KVSizes:
    """Bytes of keys and values of a model.

    A layer that sees a window holds no more of a sequence than that; between its steps it may hold the rest of two
    blocks besides, and while a prompt is read the chunk that is read.

    Attributes:
        layers: those that keep any.
        scheme: how they are kept.
        item_bytes: of a number in the compute dtype.
    """

    layers: tuple[KVLayer, ...]
    scheme: KVScheme
    item_bytes: int

    @classmethod
    def of(cls, layers: Iterable[_Layer], scheme: KVScheme, item_bytes: int) -> KVSizes:
        """Take the layers of a model that was loaded."""
        kept = tuple(KVLayer(layer.num_kv_heads, layer.head_dim, layer.window) for layer in layers)
        return cls(kept, scheme, item_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers, packed where they are."""
        return sum(self._token_bytes)

    @property
    def growth_bytes(self) -> int:
        """Bytes that one more token adds to a sequence that is longer than every window and every start."""
        return sum(size for size, layer in self._sizes if layer.window is None)

    @property
    def window_bytes(self) -> int:
        """Bytes of one token in the layers that see a window."""
        return self.token_bytes - self.growth_bytes

    @property
    def largest_layer_bytes(self) -> int:
        """Bytes of one token in the layer that has the most, as it is computed."""
        plain = (layer.num_kv_heads * PlainKV().token_bytes(layer.head_dim, self.item_bytes) for layer in self.layers)
        return max(plain, default=0)

    def sequence_bytes(self, num_tokens: int) -> int:
        """Return the bytes of one sequence of so many tokens."""
        return self.rows_bytes(num_tokens, 1)

    def rows_bytes(self, num_tokens: int, num_rows: int) -> int:
        """Return the most that `num_rows` sequences take which have `num_tokens` together.

        The first tokens of each may not be packed, and windows bound each.

        Raises:
            KVSchemeError: the layers cannot keep them so.
        """
        total = 0
        for (size, layer), kv in zip(self._sizes, self._kept, strict=True):
            held = num_tokens if layer.window is None else min(num_tokens, num_rows * layer.window)
            plain = layer.num_kv_heads * PlainKV().token_bytes(layer.head_dim, self.item_bytes)
            total += held * size + min(num_tokens, num_rows * kv.start) * (plain - size)
        return total

    @cached_property
    def _kept(self) -> tuple[LayerKV, ...]:
        return self.scheme.for_layers([LayerShape(layer.head_dim, layer.window is not None) for layer in self.layers])

    @cached_property
    def _token_bytes(self) -> tuple[int, ...]:
        return tuple(
            layer.num_kv_heads * kv.token_bytes(layer.head_dim, self.item_bytes)
            for kv, layer in zip(self._kept, self.layers, strict=True)
        )

    @property
    def _sizes(self) -> Iterable[tuple[int, KVLayer]]:
        return zip(self._token_bytes, self.layers, strict=True)
