"""What a config must say for each architecture that this build runs, and its defaults.

Facts on Llama's keys: Hugging Face's `LlamaConfig`; transformers 5 writes `rope_parameters` where 4 wrote
`rope_theta` and `rope_scaling`. Here both become `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from models.checkpoint.errors import CheckpointRejected

_MAX_LAYERS = 10_000
_MAX_WIDTH = 1 << 24
_DEFAULT_ROPE_THETA = 10_000.0


def apply_dialect(config: dict[str, Any], file: str) -> dict[str, Any]:
    """Return the config with its architecture's defaults filled in and every value checked.

    Raises:
        CheckpointRejected: an architecture, key or value that this build does not run, by name.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointRejected("is missing", file=file, key="model_type")
    if model_type not in _DIALECTS:
        known = ", ".join(_DIALECTS)
        raise CheckpointRejected(f"the architecture {model_type} is not one of {known}", file=file, key="model_type")
    return _DIALECTS[model_type](config, file)


def read_int(config: Mapping[str, Any], key: str, file: str, *, default: int | None = None, maximum: int) -> int:
    """Return a whole number from 1 to `maximum`; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is missing without a default, or is anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointRejected("is missing", file=file, key=key)
    if type(value) is not int or not 1 <= value <= maximum:
        raise CheckpointRejected(f"is no whole number from 1 to {maximum}", file=file, key=key)
    return value


def read_float(config: Mapping[str, Any], key: str, file: str, *, default: float | None = None) -> float:
    """Return a finite number over 0; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is missing without a default, or is anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointRejected("is missing", file=file, key=key)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise CheckpointRejected("is no finite number over 0", file=file, key=key)
    return float(value)


def _llama(config: dict[str, Any], file: str) -> dict[str, Any]:
    heads = read_int(config, "num_attention_heads", file, maximum=_MAX_WIDTH)
    hidden = read_int(config, "hidden_size", file, maximum=_MAX_WIDTH)
    checked: dict[str, Any] = {
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "num_hidden_layers": read_int(config, "num_hidden_layers", file, maximum=_MAX_LAYERS),
        "intermediate_size": read_int(config, "intermediate_size", file, maximum=_MAX_WIDTH),
        "vocab_size": read_int(config, "vocab_size", file, maximum=_MAX_WIDTH),
        "num_key_value_heads": read_int(config, "num_key_value_heads", file, default=heads, maximum=heads),
        "head_dim": read_int(config, "head_dim", file, default=max(1, hidden // heads), maximum=_MAX_WIDTH),
        "rms_norm_eps": read_float(config, "rms_norm_eps", file),
    }
    if config.get("max_position_embeddings") is not None:
        checked["max_position_embeddings"] = read_int(config, "max_position_embeddings", file, maximum=1 << 31)
    if heads % checked["num_key_value_heads"]:
        raise CheckpointRejected("does not divide num_attention_heads", file=file, key="num_key_value_heads")
    if checked["head_dim"] % 2:
        raise CheckpointRejected("is odd, which rotary positions do not allow", file=file, key="head_dim")
    _check_llama_options(config, checked["num_hidden_layers"], file)
    return {**config, **checked, **_rope(config, file)}


def read_windows(raw: Mapping[str, Any], num_layers: int, file: str) -> tuple[int | None, ...]:
    """Read how many tokens a token of each layer sees, itself among them; None: all before it.

    Args:
        raw: `layer_types` names a kind for each layer, `sliding_window` is the width of one of them.
        num_layers: of the model.
        file: base name of the file they come from, for errors.

    Raises:
        CheckpointRejected: a kind of layer that this build lacks, or a window without layers or the other way round.
    """
    window = None
    if raw.get("sliding_window") is not None:
        window = read_int(raw, "sliding_window", file, maximum=_MAX_WIDTH)
    kinds = raw.get("layer_types")
    if kinds is None:
        if window is not None:
            raise CheckpointRejected("is set, and no layer_types say where", file=file, key="sliding_window")
        return (None,) * num_layers
    if not isinstance(kinds, list) or len(cast("list[Any]", kinds)) != num_layers:
        raise CheckpointRejected("is not a list of one word for each layer", file=file, key="layer_types")
    windows: list[int | None] = []
    for kind in cast("list[Any]", kinds):
        if kind not in {"full_attention", "sliding_attention"}:
            problem = "has a layer that is neither full_attention nor sliding_attention"
            raise CheckpointRejected(problem, file=file, key="layer_types")
        if kind == "sliding_attention" and window is None:
            raise CheckpointRejected("is missing, and layers see a window", file=file, key="sliding_window")
        windows.append(window if kind == "sliding_attention" else None)
    return tuple(windows)


def _check_llama_options(config: Mapping[str, Any], num_layers: int, file: str) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointRejected("is not silu, the only one of this architecture", file=file, key="hidden_act")
    read_windows(config, num_layers, file)
    for key in ("attention_bias", "mlp_bias", "rope_traditional", "tie_word_embeddings"):
        if not isinstance(config.get(key, False), bool):
            raise CheckpointRejected("is neither true nor false", file=file, key=key)


def _rope(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    block = config.get(key)
    if block is not None and not isinstance(block, dict):
        raise CheckpointRejected("is no object", file=file, key=key)
    fields = cast("dict[str, Any]", block or {})
    theta_source, theta_key = (fields, f"{key}.rope_theta") if "rope_theta" in fields else (config, "rope_theta")
    theta = read_float({theta_key: theta_source.get("rope_theta")}, theta_key, file, default=_DEFAULT_ROPE_THETA)
    for place, source in ((f"{key}.partial_rotary_factor", fields), ("partial_rotary_factor", config)):
        if source.get("partial_rotary_factor", 1) not in (1, None):
            raise CheckpointRejected("is not 1, the only one of this architecture", file=file, key=place)
    return {"rope_theta": theta, "rope_scaling": _rope_scaling(fields, key, file), "rope_parameters": None}


def _rope_scaling(fields: Mapping[str, Any], key: str, file: str) -> dict[str, Any] | None:
    kind = fields.get("rope_type", fields.get("type", "default"))
    needed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }.get(kind if isinstance(kind, str) else "")
    if needed is None:
        known = "default, linear, llama3"
        raise CheckpointRejected(f"the type {kind} is not one of {known}", file=file, key=f"{key}.rope_type")
    numbers = {f"{key}.{name}": fields.get(name) for name in needed}
    scaling: dict[str, Any] = {name: read_float(numbers, f"{key}.{name}", file) for name in needed}
    if not needed:
        return None
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise CheckpointRejected("is not over low_freq_factor", file=file, key=f"{key}.high_freq_factor")
    return {"rope_type": kind, **scaling}


_DIALECTS: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {"llama": _llama}
