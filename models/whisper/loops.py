"""Texts that repeat themselves, or what was said before: how a model writes on when it hears nothing. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence

_LOOP_TOKENS = 48  # a loop is at least so long altogether
_MIN_REPEATS = 4
_ECHO_TOKENS = 5  # so many in a row that stand in the text before are one and the same


def said(tokens: Sequence[int], first_time: int) -> tuple[int, ...]:
    """Return a window's tokens up to where they begin to repeat themselves: to the last time before that.

    A loop is a run of tokens that comes at least four times in a row and fills 48 tokens. Where it fills the window, or
    no time tells what stands before it, nothing of the window is believed.
    """
    kept = _loop_start(tokens, first_time)
    if kept is None:
        return tuple(tokens)
    while kept > 0 and tokens[kept - 1] < first_time:
        kept -= 1
    return tuple(tokens[:kept]) if kept > 1 else ()


def echo_share(tokens: Sequence[int], before: Sequence[int]) -> float:
    """Return how much of a text stands in the text before it as well, five tokens in a row at least; 0 for none."""
    length = min(_ECHO_TOKENS, len(tokens))
    if length == 0:
        return 0.0
    known = {tuple(before[place : place + length]) for place in range(len(before) - length + 1)}
    covered = 0
    end = 0
    for place in range(len(tokens) - length + 1):
        if tuple(tokens[place : place + length]) in known:
            covered += place + length - max(end, place)
            end = place + length
    return covered / len(tokens)


def _loop_start(tokens: Sequence[int], first_time: int) -> int | None:
    """Return where the second round of a loop starts; times count as alike, for they go on while words repeat."""
    alike = [min(token, first_time) for token in tokens]
    for length in range(1, len(alike) // _MIN_REPEATS + 1):
        run = 0
        for place in range(length, len(alike)):
            run = run + 1 if alike[place] == alike[place - length] else 0
            if run >= max(_LOOP_TOKENS, (_MIN_REPEATS - 1) * length):
                return place - run + 1
    return None
