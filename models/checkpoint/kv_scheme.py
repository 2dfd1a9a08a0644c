"""How keys and values are kept: what a setting asks for, and what each layer of a model then gets.

    none                    as they are computed
    8, 4                    MLX's affine quantization in groups of 64
    config                  affine, layer by layer as the checkpoint's kv_config.json says
    turbo                   TurboQuant, the same as turbo:k8v3
    turbo:k<bits>v<bits>    TurboQuant with keys of 2, 4, 5 or 8 bits and values of 2, 3, 4, 5 or 8

    8:g32                   in groups of 32 or 128 instead of 64; for 8 and 4
    8:s512, 4:g32:s64       packed from that position on, a multiple of 32; for all but none

Plain data; `models.layers.stores.make` makes what keeps them. Only layers that see everything are packed. Those that
see a window hold little and stay as computed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from models.blocks import BLOCK_TOKENS
from models.checkpoint.errors import quotable
from models.checkpoint.kv_config import AFFINE_GROUP_SIZES, DEFAULT_GROUP_SIZE, KV_CONFIG_FILE, read_kv_config

TURBO_KEY_BITS = (2, 4, 5, 8)
TURBO_VALUE_BITS = (2, 3, 4, 5, 8)
TURBO_HEAD_DIMS = (64, 128, 256, 512)
TURBO_GROUP_SIZE = 32
OPTION = "kv_scheme"

_TURBO = re.compile(r"turbo:k([0-9]{1,4})v([0-9]{1,4})")
_SIZES = re.compile(r"(.*?)(?::g([0-9]{1,4}))?(?::s([0-9]{1,7}))?", re.DOTALL)
_FORMS = "none, 8, 4, config, turbo or turbo:k<bits>v<bits>, then :g<size> (8 and 4) and :s<start>"
_log = logging.getLogger(__name__)


class KVSchemeError(ValueError):
    """Raised when keys and values cannot be kept as asked.

    Attributes:
        option: name of the setting.
        problem: one clause in plain words, safe to pass on.
    """

    def __init__(self, problem: str, option: str = OPTION) -> None:
        """Keep the facts."""
        self.option = option
        self.problem = quotable(problem)
        super().__init__(f"{option}: {self.problem}")


class LayerShape(NamedTuple):
    """What matters of a layer: the width of its heads, whether it sees a window only, or keeps a state instead."""

    head_dim: int
    is_window: bool = False
    has_state: bool = False


@dataclass(frozen=True, slots=True)
class PlainKV:
    """Keys and values as they are computed."""

    start: ClassVar[int] = 0

    def token_bytes(self, head_dim: int, itemsize: int) -> int:
        """Return the bytes of one token's key and value in one head; `itemsize` is that of the compute dtype."""
        return 2 * head_dim * itemsize


@dataclass(frozen=True, slots=True)
class AffineKV:
    """MLX's affine quantization from position `start` on."""

    bits: int
    group_size: int = DEFAULT_GROUP_SIZE
    start: int = 0

    def token_bytes(self, head_dim: int, itemsize: int) -> int:
        """Return the bytes of one packed token in one head: its codes, and scale and bias of each group."""
        return 2 * (head_dim * self.bits // 8 + 2 * itemsize * head_dim // self.group_size)


@dataclass(frozen=True, slots=True)
class TurboKV:
    """TurboQuant from position `start` on."""

    key_bits: int
    value_bits: int
    start: int = 0

    def token_bytes(self, head_dim: int, itemsize: int) -> int:  # noqa: ARG002 (whatever the compute dtype)
        """Return the bytes of one packed token in one head: codes, and three float16 numbers for each group."""
        return head_dim * (self.key_bits + self.value_bits) // 8 + 6 * head_dim // TURBO_GROUP_SIZE


LayerKV = PlainKV | AffineKV | TurboKV


@dataclass(frozen=True, slots=True)
class KVScheme:
    """How a model keeps keys and values.

    Attributes:
        kind: what was asked for.
        every: what each layer gets; where the kind is `config`, those that the file does not name.
        per_layer: what kv_config.json says, by the layer's number.
        option: name of the setting, for errors.
    """

    kind: Literal["none", "affine", "turbo", "config"] = "none"
    every: LayerKV = field(default_factory=PlainKV)
    per_layer: Mapping[int, AffineKV] = field(default_factory=dict[int, AffineKV])
    option: str = OPTION

    @classmethod
    def from_text(cls, text: str, *, folder: Path | None = None, option: str = OPTION) -> KVScheme:
        """Read a setting.

        Args:
            text: one of the forms above; empty is none.
            folder: the checkpoint's, for `config`; None where it has no folder.
            option: name of the setting, for errors.

        Raises:
            KVSchemeError: another form, or bits, a group size or start that is not offered.
            CheckpointError: kv_config.json is not there, is broken, or asks for what is not offered.
        """
        sizes = _SIZES.fullmatch(text)
        name, group, start = (text, None, None) if sizes is None else sizes.groups()
        if name in ("8", "4"):
            return cls("affine", AffineKV(int(name), _group_size(group, option), _start(start, option)), option=option)
        if group is not None and (name in ("", "none", "config") or name.startswith("turbo")):
            raise KVSchemeError(f'only 8 and 4 take a group size (got "{text}")', option)
        if name in ("", "none"):
            if start is not None:
                raise KVSchemeError(f'none takes no start (got "{text}")', option)
            return cls(option=option)
        if name == "config":
            return cls("config", per_layer=_read_layers(folder, _start(start, option), option), option=option)
        return cls("turbo", _turbo(name if group is None else text, _start(start, option), option), option=option)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is packed."""
        return self.kind == "none"

    @property
    def word(self) -> str:
        """One word that differs where what is kept differs: none, kv8-g64, turbo-k8v3-start64, config-1f0c22d9.

        The digits after config stand for the content of the file.
        """
        match self.every:
            case AffineKV(bits, group_size, start):
                return f"kv{bits}-g{group_size}{_start_word(start)}"
            case TurboKV(key_bits, value_bits, start):
                return f"turbo-k{key_bits}v{value_bits}{_start_word(start)}"
            case PlainKV():
                pass
        if self.is_plain:
            return "none"
        layers = sorted(self.per_layer.items())
        digest = hashlib.sha256(repr([(index, kv.bits, kv.group_size) for index, kv in layers]).encode())
        start = max((kv.start for _, kv in layers), default=0)
        return f"config-{digest.hexdigest()[:8]}{_start_word(start)}"

    def for_layer(self, index: int, head_dim: int, *, is_window: bool = False) -> LayerKV:
        """Return how a layer keeps its keys and values.

        Args:
            index: its number.
            head_dim: width of its heads.
            is_window: whether it sees a window only, or keeps a state instead; it then stays as computed.

        Raises:
            KVSchemeError: heads of this width cannot be packed so.
        """
        asked = self.per_layer.get(index, self.every)
        if is_window:
            return PlainKV()
        if isinstance(asked, TurboKV) and head_dim not in TURBO_HEAD_DIMS:
            words = f"layer {index} has heads of {head_dim}; turbo packs {_listed(TURBO_HEAD_DIMS)}"
            raise KVSchemeError(words, self.option)
        if isinstance(asked, AffineKV) and head_dim % asked.group_size:
            words = f"layer {index} has heads of {head_dim}, no multiple of the group size {asked.group_size}"
            raise KVSchemeError(words, self.option)
        return asked

    def for_layers(self, layers: Sequence[LayerShape]) -> tuple[LayerKV, ...]:
        """Return how each layer of a model keeps its keys and values, and log once which stay as computed.

        Raises:
            KVSchemeError: a layer's heads cannot be packed so, kv_config.json names a layer that is not there, or every
                layer sees a window only.
        """
        beyond = max(self.per_layer, default=-1)
        if beyond >= len(layers):
            words = f"{KV_CONFIG_FILE} names layer {beyond} of a model of {len(layers)} layers"
            raise KVSchemeError(words, self.option)
        chosen = tuple(
            self.for_layer(index, shape.head_dim, is_window=shape.is_window or shape.has_state)
            for index, shape in enumerate(layers)
        )
        num_window = sum(shape.is_window for shape in layers)
        if self.is_plain or not num_window:
            return chosen
        if all(isinstance(kv, PlainKV) for kv in chosen):
            raise KVSchemeError("no layer that sees everything is there to be packed", self.option)
        _log.warning(
            "%d of %d layers see a window only and keep their keys and values as computed", num_window, len(layers)
        )
        return chosen


def _group_size(digits: str | None, option: str) -> int:
    group_size = DEFAULT_GROUP_SIZE if digits is None else int(digits)
    if group_size not in AFFINE_GROUP_SIZES:
        raise KVSchemeError(f"the group size must be one of {_listed(AFFINE_GROUP_SIZES)} (got {group_size})", option)
    return group_size


def _start(digits: str | None, option: str) -> int:
    start = int(digits or 0)
    if start % BLOCK_TOKENS:
        raise KVSchemeError(f"the start must be a multiple of {BLOCK_TOKENS} tokens (got {start})", option)
    return start


def _read_layers(folder: Path | None, start: int, option: str) -> dict[int, AffineKV]:
    if folder is None:
        raise KVSchemeError(f"config reads {KV_CONFIG_FILE} of a checkpoint's folder, and this is no folder", option)
    return {entry.layer: AffineKV(entry.bits, entry.group_size, start) for entry in read_kv_config(folder)}


def _turbo(text: str, start: int, option: str) -> TurboKV:
    if text == "turbo":
        return TurboKV(8, 3, start)
    if not text.startswith("turbo:"):
        raise KVSchemeError(f'must be {_FORMS} (got "{text}")', option)
    match = _TURBO.fullmatch(text)
    if match is None:
        raise KVSchemeError(f'the turbo spec must look like "turbo:k<bits>v<bits>" (got "{text}")', option)
    key_bits, value_bits = int(match[1]), int(match[2])
    if key_bits not in TURBO_KEY_BITS:
        raise KVSchemeError(f"turbo key bits must be one of {_listed(TURBO_KEY_BITS)} (got {key_bits})", option)
    if value_bits not in TURBO_VALUE_BITS:
        raise KVSchemeError(f"turbo value bits must be one of {_listed(TURBO_VALUE_BITS)} (got {value_bits})", option)
    return TurboKV(key_bits, value_bits, start)


def _start_word(start: int) -> str:
    return f"-start{start}" if start else ""


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
