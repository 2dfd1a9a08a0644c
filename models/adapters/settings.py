"""The settings of an adapter: by what its products are multiplied, and what makes it one that is not run.

mlx-lm states `lora_parameters` with a scale; PEFT `lora_alpha` and `r`, whose quotient is the scale. A rank-stabilized
adapter (rsLoRA) divides by the square root of the rank of each layer instead of by the rank.

Source: Hu et al. 2021, arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from models.adapters.errors import AdapterRejected, as_adapters
from models.adapters.names import is_of
from models.adapters.refused import check_kind
from models.checkpoint.files import parse_object, read_bytes
from models.checkpoint.values import read_bool, read_object, read_optional_int

MAX_SETTINGS_BYTES = 4 << 20
MAX_RANK = 1 << 16
# Of float32, which computes: what is nearer to 0 is lost, and what is larger makes all of it infinite.
_MIN_NUMBER, _MAX_NUMBER = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
# What mlx-lm and PEFT mean where the files say nothing.
_MLX_SCALE, _PEFT_ALPHA, _PEFT_RANK = 20.0, 16.0, 8
_OWN_RANKS_FILE = "optiq_lora_config.json"
_ALL_LINEAR = "all-linear"
_MODULE_NAME = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """What the settings say of the numbers.

    Attributes:
        file: base name of the file that says it.
        scale: multiplies the product of a layer's two matrices; of a rank-stabilized adapter, before it is divided by
            the root of the layer's rank; where `is_alpha`, before it is divided by the rank.
        rank: of every layer that `ranks` does not name; None: each layer has its own, which its tensors say.
        is_alpha: whether `scale` is PEFT's `lora_alpha`.
        is_rank_stabilized: whether ranks count by their roots.
        ranks: of layers whose names end so.
        alphas: the same for `lora_alpha`.
        targets: ends of the names of the layers that the adapter is for; None: every layer that it has tensors for.
    """

    file: str
    scale: float
    rank: int | None = None
    is_alpha: bool = False
    is_rank_stabilized: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    alphas: Mapping[str, float] = field(default_factory=dict[str, float])
    targets: tuple[str, ...] | None = None

    @property
    def stated_scale(self) -> float:
        """The scale of a layer that is named nowhere, as far as it does not hang on the layer's own rank."""
        return self.scale / (self.rank or _PEFT_RANK) if self.is_alpha and not self.is_rank_stabilized else self.scale

    def rank_of(self, module: str) -> int | None:
        """Return the rank that a layer must have; None: any."""
        return _of_module(module, self.ranks, self.rank)

    def scale_of(self, module: str, rank: int) -> float:
        """Return what a layer's product is multiplied by.

        Args:
            module: canonical name.
            rank: of the layer's tensors.
        """
        scale = _of_module(module, self.alphas, self.scale)
        if self.is_rank_stabilized:
            return scale / math.sqrt(rank)
        return scale / (self.rank_of(module) or _PEFT_RANK) if self.is_alpha else scale

    def is_target(self, module: str) -> bool:
        """Tell whether the adapter is for a layer, by its own word."""
        return self.targets is None or is_of(module, self.targets)

    def identity(self) -> bytes:
        """Return what tells apart settings of which the same tensors give other numbers."""
        facts = {key: value for key, value in asdict(self).items() if key != "file"}
        return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def read_settings(path: Path) -> AdapterSettings:
    """Read an adapter's settings.

    Raises:
        AdapterRejected: they are no JSON object, a value is of no use, or they describe a kind that is not run.
    """
    with as_adapters():
        keys = parse_object(read_bytes(path, MAX_SETTINGS_BYTES), path.name)
        check_kind(keys, path.name)
        parameters = read_object(keys, "lora_parameters", path.name)
        return _read_peft(keys, path.name) if parameters is None else _read_mlx(keys, parameters, path.name)


def _read_mlx(keys: Mapping[str, Any], parameters: Mapping[str, Any], file: str) -> AdapterSettings:
    if "scale" not in parameters and "alpha" in parameters:
        raise AdapterRejected("is not read here, where a scale stands", file=file, key="lora_parameters.alpha")
    check_kind(parameters, file)
    return AdapterSettings(
        file,
        scale=_number(parameters, "scale", file, default=_MLX_SCALE),
        # Its own file says the largest or usual rank of layers that have ranks of their own.
        rank=None if file == _OWN_RANKS_FILE else _rank(parameters, "rank", file),
        is_rank_stabilized=_is_rank_stabilized(keys, parameters, file),
        targets=_names(parameters.get("keys"), "lora_parameters.keys", file),
    )


def _read_peft(keys: Mapping[str, Any], file: str) -> AdapterSettings:
    return AdapterSettings(
        file,
        scale=_number(keys, "lora_alpha", file, default=_PEFT_ALPHA),
        rank=_rank(keys, "r", file),
        is_alpha=True,
        is_rank_stabilized=_is_rank_stabilized(keys, {}, file),
        ranks={name: _rank({name: value}, name, file) or 1 for name, value in _pattern(keys, "rank_pattern", file)},
        alphas={
            name: _number({name: value}, name, file, default=_PEFT_ALPHA)
            for name, value in _pattern(keys, "alpha_pattern", file)
        },
        targets=_names(keys.get("target_modules"), "target_modules", file),
    )


def _number(section: Mapping[str, Any], key: str, file: str, *, default: float) -> float:
    """Return a number that float32 holds, and not 0, which adds nothing; `default` where it is absent or null."""
    value = section.get(key)
    if value is None:
        return default
    number = _as_float(value) if type(value) in (int, float) else 0.0
    if not _MIN_NUMBER <= abs(number) <= _MAX_NUMBER:
        raise AdapterRejected("is no finite number other than 0 that float32 holds", file=file, key=key)
    return number


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _rank(section: Mapping[str, Any], key: str, file: str) -> int | None:
    return read_optional_int(section, key, file, maximum=MAX_RANK)


def _is_rank_stabilized(keys: Mapping[str, Any], parameters: Mapping[str, Any], file: str) -> bool:
    for section, key in ((keys, "rs_lora"), (parameters, "rs_lora"), (keys, "use_rslora")):
        if section.get(key) is not None:
            return read_bool(section, key, file)
    return False


def _names(value: object, key: str, file: str) -> tuple[str, ...] | None:
    """Return the ends of names; None where the value says none: a pattern is not run, and all are meant then."""
    if value is None or value == _ALL_LINEAR or (isinstance(value, str) and not _MODULE_NAME.fullmatch(value)):
        return None
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[object]", names)):
        raise AdapterRejected("is no list of names", file=file, key=key)
    return tuple(cast("list[str]", names)) or None


def _pattern(keys: Mapping[str, Any], key: str, file: str) -> list[tuple[str, object]]:
    """Return the entries of a map by ends of names, without the mark that PEFT puts before a whole name."""
    found: list[tuple[str, object]] = []
    for name, value in (read_object(keys, key, file) or {}).items():
        plain = name.removeprefix("^")
        if not _MODULE_NAME.fullmatch(plain):
            raise AdapterRejected(f"has {name}, a pattern and no name", file=file, key=key)
        found.append((plain, value))
    return found


def _of_module(module: str, named: Mapping[str, Any], otherwise: Any) -> Any:
    return next((value for name, value in named.items() if is_of(module, (name,))), otherwise)
