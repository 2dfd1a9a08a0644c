"""What an operator sets for requests that leave it open: how tokens are drawn, and how long an answer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pomona.v1 import model_pb2


MAX_TOKENS = "max_tokens"  # the one that is not of sampling

# Inclusive, as requests have them; `top_p` and `repetition_penalty` may not be 0.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, (1 << 31) - 1),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 0.5),
    "repetition_penalty": (0.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "penalty_window": (0, (1 << 32) - 1),
    "seed": (0, (1 << 64) - 1),
    MAX_TOKENS: (1, (1 << 32) - 1),
}
COUNTS = frozenset({"top_k", "penalty_window", "seed", MAX_TOKENS})
NEVER_ZERO = frozenset({"top_p", "repetition_penalty"})


def are_defaults(values: object) -> bool:
    """Say whether these are defaults: known by name, each of its type and in its range."""
    return isinstance(values, Mapping) and all(
        _is_default(name, value) for name, value in cast("Mapping[Any, Any]", values).items()
    )


def note_defaults(message: model_pb2.Model, defaults: Mapping[str, float]) -> None:
    """Put defaults of the settings before those of the checkpoint.

    Args:
        message: of the model; it is changed.
        defaults: that `are_defaults` holds for.
    """
    for name, value in defaults.items():
        setattr(message.default_stopping if name == MAX_TOKENS else message.default_sampling, name, value)


def _is_default(name: object, value: object) -> bool:
    if name not in RANGES or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = RANGES[cast("str", name)]
    is_kind = isinstance(value, int) or name not in COUNTS
    return is_kind and low <= value <= high and not (name in NEVER_ZERO and value == 0)
