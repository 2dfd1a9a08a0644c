"""Which layers of a checkpoint are quantized, and how.

MLX writes `quantization: {bits, group_size, mode, <module>: {...} | false}` into config.json, and the same again as
`quantization_config`. Other producers put their own schemes under `quantization_config.quant_method`: those are
refused by name, never read as MLX's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.names import canonical_name
from models.checkpoint.values import read_int, read_word

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUP_SIZES = (32, 64, 128)
# Fixed by the formats: OCP Microscaling v1.0 (blocks of 32) and NVIDIA's NVFP4 (blocks of 16).
FLOAT_MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
# Whose matrices may have a scale of their own beside those of their groups.
GLOBAL_SCALE_MODE = "nvfp4"
TRELLIS_MODE = "trellis"
_MAX_TRELLIS_NUMBER = 1 << 16
_DEFAULT_TRELLIS_CODE = "1mad"
_KEYS = ("quantization", "quantization_config")


@dataclass(frozen=True, slots=True)
class Trellis:
    """How weights are coded along a trellis.

    Attributes:
        state_bits: bits L of a state.
        code: word for what makes a weight of a state.
        axis: 1: along the inputs, 0: along the outputs.

    Source: Tseng et al. 2024, arXiv:2406.11235.
    """

    state_bits: int
    code: str
    axis: int


@dataclass(frozen=True, slots=True)
class LayerQuantization:
    """How one layer's weight is packed.

    Attributes:
        bits: bits a weight.
        group_size: weights a group; of a trellis, weights a block.
        mode: MLX's word.
        trellis: of the mode `trellis`, else None.
    """

    bits: int
    group_size: int
    mode: str = "affine"
    trellis: Trellis | None = None

    @property
    def has_biases(self) -> bool:
        """Whether each group has a bias beside its scale: only the affine mode."""
        return self.mode == "affine"

    def __str__(self) -> str:
        """Words for people: `affine 4-bit g32`."""
        return f"{self.mode} {self.bits}-bit g{self.group_size}"


@dataclass(frozen=True, slots=True)
class Quantization:
    """The scheme of a checkpoint.

    Attributes:
        default: how a quantized layer without an override is packed; None where only overrides are.
        per_layer: overrides by canonical module name; None means that the layer is not quantized.
        keys: the override's key as the file spells it, by canonical module name.
        file: base name of the file that states it, for errors.
    """

    default: LayerQuantization | None
    per_layer: Mapping[str, LayerQuantization | None]
    keys: Mapping[str, str]
    file: str = "config.json"

    def for_layer(self, module: str) -> LayerQuantization | None:
        """Return how the module of this canonical name is packed, or None where it is not quantized."""
        return self.per_layer.get(module, self.default)

    def check_modules(self, modules: Iterable[str], ignored: Iterable[str] = ()) -> None:
        """Refuse overrides that concern no module of the model.

        Args:
            modules: canonical names of every module that can be quantized.
            ignored: those of modules that are not read, nor what lies within them.

        Raises:
            CheckpointRejected: naming the key.
        """
        known = frozenset(modules)
        unread = tuple(ignored)
        for module, key in self.keys.items():
            if module not in known and not any(f"{module}.".startswith(f"{name}.") for name in unread):
                raise CheckpointRejected(
                    "is quantized on its own but is no layer of the model", file=self.file, key=key
                )

    def __str__(self) -> str:
        """Words for people: `affine 4-bit g32`, with `, mixed` where some layers are packed otherwise or not at all."""
        layers = [layer for layer in self.per_layer.values() if layer is not None]
        main = self.default or (max(layers, key=layers.count) if layers else None)
        if main is None:
            return ""
        return f"{main}, mixed" if any(layer != main for layer in self.per_layer.values()) else str(main)


def parse_quantization(config: Mapping[str, Any], file: str = "config.json") -> Quantization | None:
    """Read the quantization block of a config; None where the checkpoint is not quantized.

    `quantization` goes before `quantization_config`. An override inherits what it leaves out from the default, or
    from its own mode where that is another; `false` keeps the layer unquantized; other scalars are not overrides.

    Raises:
        CheckpointRejected: a scheme, mode, width or group size that this build does not run, named with its key.
    """
    key = next((key for key in _KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    block: object = config[key]
    if not isinstance(block, dict):
        raise CheckpointRejected("is no object", file=file, key=key)
    fields = cast("dict[str, Any]", block)
    _refuse_foreign(fields, key, file)
    default = _layer(fields, None, key, file)
    per_layer: dict[str, LayerQuantization | None] = {}
    keys: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict) or value is False:
            module = canonical_name(name)
            layer = None if value is False else _override(cast("dict[str, Any]", value), default, f"{key}.{name}", file)
            if module in per_layer and per_layer[module] != layer:
                raise CheckpointRejected("contradicts another key for the same layer", file=file, key=f"{key}.{name}")
            per_layer[module], keys[module] = layer, f"{key}.{name}"
    return Quantization(default, per_layer, keys, file)


def _refuse_foreign(fields: Mapping[str, Any], key: str, file: str) -> None:
    method = fields.get("quant_method")
    if method is None:
        return
    scheme = str(fields["format"]) if isinstance(fields.get("format"), str) else ""
    words = f"{method} ({scheme})" if scheme else f"{method}"
    raise CheckpointRejected(
        f"the scheme {words} is not read by this build, which reads MLX's own quantization",
        file=file,
        key=f"{key}.quant_method",
    )


def _override(fields: Mapping[str, Any], default: LayerQuantization, key: str, file: str) -> LayerQuantization:
    if fields.get("mode") != TRELLIS_MODE:
        return _layer(fields, default, key, file)
    block: object = fields.get("trellis")
    if not isinstance(block, dict):
        problem = 'the mode "trellis" needs a trellis {L, code, axis} block'
        raise CheckpointRejected(problem, file=file, key=key)
    numbers = {
        f"{key}.bits": fields.get("bits", default.bits),
        f"{key}.group_size": fields.get("group_size", default.group_size),
        f"{key}.trellis.L": cast("dict[str, Any]", block).get("L"),
        f"{key}.trellis.code": cast("dict[str, Any]", block).get("code"),
    }
    bits, group_size, state_bits = (
        read_int(numbers, f"{key}.{name}", file, maximum=_MAX_TRELLIS_NUMBER)
        for name in ("bits", "group_size", "trellis.L")
    )
    code = read_word(numbers, f"{key}.trellis.code", file, default=_DEFAULT_TRELLIS_CODE)
    axis = 0 if cast("dict[str, Any]", block).get("axis") == 0 else 1
    return LayerQuantization(bits, group_size, TRELLIS_MODE, Trellis(state_bits, code, axis))


def _layer(fields: Mapping[str, Any], default: LayerQuantization | None, key: str, file: str) -> LayerQuantization:
    mode = fields.get("mode", default.mode if default else "affine")
    if isinstance(mode, str) and mode in FLOAT_MODES:
        bits, group_size = FLOAT_MODES[mode]
        allowed = {"bits": (bits,), "group_size": (group_size,)}
        inherited = {"bits": bits, "group_size": group_size}
    elif mode == "affine":
        allowed = {"bits": AFFINE_BITS, "group_size": AFFINE_GROUP_SIZES}
        inherited = {}
        if default is not None and default.mode == mode:
            inherited = {"bits": default.bits, "group_size": default.group_size}
    else:
        raise CheckpointRejected(f"the mode {mode} is not read by this build", file=file, key=f"{key}.mode")
    chosen = {**inherited, **{field: fields[field] for field in allowed if field in fields}}
    for field, choices in allowed.items():
        value = chosen.get(field)
        if value is None:
            raise CheckpointRejected("is missing", file=file, key=f"{key}.{field}")
        if type(value) is not int or value not in choices:
            words = ", ".join(map(str, choices))
            raise CheckpointRejected(f"is {value!r}; this build reads {words}", file=file, key=f"{key}.{field}")
    return LayerQuantization(chosen["bits"], chosen["group_size"], mode)
