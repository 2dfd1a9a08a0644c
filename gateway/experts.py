"""How the settings for routed experts are spelled, and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from pomona.v1 import model_pb2

ExpertsWord = Literal["auto", "resident", "mapped", "slab"]
"""Where routed experts lie; `auto` leaves it to what fits."""
EXPERTS_WORDS: tuple[ExpertsWord, ...] = get_args(ExpertsWord)
# Whose memory a budget bounds.
BUDGETED: frozenset[ExpertsWord] = frozenset({"auto", "slab"})
MIN_BUDGET_BYTES, MAX_BUDGET_BYTES = 64 << 10, 1 << 50

_WORDS: Mapping[int, ExpertsWord] = {
    model_pb2.EXPERTS_MODE_RESIDENT: "resident",
    model_pb2.EXPERTS_MODE_MAPPED: "mapped",
    model_pb2.EXPERTS_MODE_SLAB: "slab",
    model_pb2.EXPERTS_MODE_AUTO: "auto",
}
_MODES = {word: model_pb2.ExpertsMode.ValueType(mode) for mode, word in _WORDS.items()}


def experts_word(mode: int) -> ExpertsWord | None:
    """Return the word for a mode of the contract; None where it is left open.

    Raises:
        ValueError: there is no such mode.
    """
    if mode == model_pb2.EXPERTS_MODE_UNSPECIFIED:
        return None
    if mode not in _WORDS:
        raise ValueError("is no mode that this server knows")
    return _WORDS[mode]


def experts_mode(word: str | None) -> model_pb2.ExpertsMode.ValueType:
    """Return the mode of the contract for a word; UNSPECIFIED where there is none."""
    return _MODES.get(word or "", model_pb2.EXPERTS_MODE_UNSPECIFIED)


def check_budget(word: ExpertsWord) -> None:
    """Refuse a budget that nothing would keep.

    Args:
        word: where the experts lie that it is for.

    Raises:
        ValueError: it bounds nothing there.
    """
    if word not in BUDGETED:
        raise ValueError(f"bounds slabs, and the experts are {word}; it goes with slab and auto")
