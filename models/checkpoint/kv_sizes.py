"""What keys and values take, and states: of a token, of a sequence, of many sequences together; no MLX."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from models.blocks import BLOCK_TOKENS
from models.checkpoint.dialects import FULL
from models.checkpoint.kv_scheme import KVScheme, LayerKV, LayerShape, PlainKV
from models.checkpoint.text_config import TextConfig

# A copy of the states may take so many times the bytes of the keys and values between it and the one before.
_MARK_SHARE = 4
_MOST_MARK_BLOCKS = 16
_FLOAT_BYTES = 4


class StateSize(NamedTuple):
    """What a layer's state has of a sequence of any length: numbers in the compute dtype, and float32."""

    numbers: int = 0
    floats: int = 0

    def nbytes(self, item_bytes: int) -> int:
        """Return its bytes; `item_bytes` are those of a number in the compute dtype."""
        return self.numbers * item_bytes + self.floats * _FLOAT_BYTES


class KVLayer(NamedTuple):
    """What a layer keeps.

    Attributes:
        num_kv_heads: of keys and values; 0: it keeps none.
        head_dim: their width.
        window: how far it sees; None: to the start.
        state: what it keeps instead of keys and values.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None
    state: StateSize = StateSize()


class Heads(Protocol):
    """What a scheme has to know of a layer; `models.layers.cache.AttentionLayer` is one."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values; 0: it keeps none."""
        ...

    @property
    def head_dim(self) -> int:
        """Their width."""
        ...

    @property
    def window(self) -> int | None:
        """How many tokens it sees, itself among them; None: all."""
        ...


class Layer(Heads, Protocol):
    """What has to be known of a layer besides, to say what it takes."""

    @property
    def state(self) -> StateSize:
        """What it keeps instead of keys and values."""
        ...


def kv_layers(text: TextConfig) -> tuple[KVLayer, ...]:
    """Return each layer of a model that keeps keys and values of its own, or a state.

    The trailing layers of a Gemma 4 that look at an earlier one's keep none, and where its layers see everything they
    have heads of another width.
    """
    if any(text.linear_layers):
        full, linear = KVLayer(text.num_key_value_heads, text.head_dim), KVLayer(0, 0, None, linear_state(text))
        return tuple(linear if is_linear else full for is_linear in text.linear_layers)
    if text.model_type != "gemma4_text":
        return tuple(KVLayer(text.num_key_value_heads, text.head_dim, window) for window in text.windows)
    num_own = text.num_hidden_layers - text.num_kv_shared_layers
    full_heads = text.num_global_key_value_heads if text.is_key_value else text.num_key_value_heads
    full = KVLayer(full_heads, text.global_head_dim)
    sliding = KVLayer(text.num_key_value_heads, text.head_dim, text.sliding_window)
    return tuple(full if kind == FULL else sliding for kind in text.layer_types[:num_own])


def linear_state(text: TextConfig) -> StateSize:
    """Return what a layer of gated linear attention keeps: what its convolution sees again, and its memory."""
    config = text.linear_attention
    values = config.num_value_heads * config.value_head_dim
    channels = 2 * config.num_key_heads * config.key_head_dim + values
    return StateSize((config.conv_kernel_size - 1) * channels, values * config.key_head_dim)


def shape_of(layer: Heads) -> LayerShape:
    """Return what a scheme has to know of a layer."""
    return LayerShape(layer.head_dim, layer.window is not None, has_state=layer.num_kv_heads == 0)


@dataclass(frozen=True)
class KVSizes:
    """Bytes of keys and values of a model, and of the states of layers that keep one instead.

    A layer that sees a window holds no more of a sequence than that; between its steps it may hold the rest of two
    blocks besides, and while a prompt is read the chunk that is read. A state is as large for one token as for many;
    beside it lie copies of it from the last places behind which another sequence can begin.

    Attributes:
        layers: those that keep any.
        scheme: how they are kept.
        item_bytes: of a number in the compute dtype.
    """

    layers: tuple[KVLayer, ...]
    scheme: KVScheme
    item_bytes: int

    @classmethod
    def of(cls, layers: Iterable[Layer], scheme: KVScheme, item_bytes: int) -> KVSizes:
        """Take the layers of a model that was loaded."""
        kept = tuple(KVLayer(layer.num_kv_heads, layer.head_dim, layer.window, layer.state) for layer in layers)
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

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one sequence in all layers, without their copies."""
        return sum(layer.state.nbytes(self.item_bytes) for layer in self.layers)

    @property
    def row_bytes(self) -> int:
        """Bytes that a sequence takes however short it is: its states and all copies of them."""
        return self.state_bytes * (1 + self.num_marks)

    @property
    def mark_blocks(self) -> int:
        """Blocks from one place where copies of the states are kept to the next, within a chunk or behind one."""
        blocks = 1
        while blocks < _MOST_MARK_BLOCKS and self.state_bytes > _MARK_SHARE * blocks * BLOCK_TOKENS * self.growth_bytes:
            blocks *= 2
        return blocks

    @property
    def num_marks(self) -> int:
        """How many copies of the states a sequence keeps, the last ones: those of 512 tokens and the end of a chunk."""
        return _MOST_MARK_BLOCKS // self.mark_blocks + 1

    def rows_bytes(self, num_tokens: int, num_rows: int) -> int:
        """Return the most that `num_rows` sequences take which have `num_tokens` together.

        The first tokens of each may not be packed, windows bound each, and states and their copies are those of each.

        Raises:
            KVSchemeError: the layers cannot keep them so.
        """
        total = num_rows * self.row_bytes
        for (size, layer), kv in zip(self._sizes, self._kept, strict=True):
            held = num_tokens if layer.window is None else min(num_tokens, num_rows * layer.window)
            plain = layer.num_kv_heads * PlainKV().token_bytes(layer.head_dim, self.item_bytes)
            total += held * size + min(num_tokens, num_rows * kv.start) * (plain - size)
        return total

    @cached_property
    def _kept(self) -> tuple[LayerKV, ...]:
        return self.scheme.for_layers([shape_of(layer) for layer in self.layers])

    @cached_property
    def _token_bytes(self) -> tuple[int, ...]:
        return tuple(
            layer.num_kv_heads * kv.token_bytes(layer.head_dim, self.item_bytes)
            for kv, layer in zip(self._kept, self.layers, strict=True)
        )

    @property
    def _sizes(self) -> Iterable[tuple[int, KVLayer]]:
        return zip(self._token_bytes, self.layers, strict=True)
