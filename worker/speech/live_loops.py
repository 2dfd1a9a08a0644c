"""Words that repeat themselves: a model that is lost says the same for ever. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence

_MIN_ROUNDS = 3
_MIN_ROUNDS_OF_ONE = 4  # "no, no, no" is said
_MIN_LOST_ROUNDS = 4
_MIN_LOST_WORDS = 8


def loop_start(words: Sequence[str]) -> int | None:
    """Return where the second round of the first loop starts; None where there is none.

    A loop is the same words at least three times in a row, or one word four times.
    """
    starts = [
        start
        for length in range(1, len(words) // _MIN_ROUNDS + 1)
        if (start := _second_round(words, length, _MIN_ROUNDS_OF_ONE if length == 1 else _MIN_ROUNDS)) is not None
    ]
    return min(starts, default=None)


def lost_start(words: Sequence[str]) -> int | None:
    """Return where the second round starts of a loop that nobody says; None where there is none.

    That is the same words at least four times in a row, eight words or more together.
    """
    starts: list[int] = []
    for length in range(1, len(words) // _MIN_LOST_ROUNDS + 1):
        rounds = max(_MIN_LOST_ROUNDS, -(-_MIN_LOST_WORDS // length))
        if (start := _second_round(words, length, rounds)) is not None:
            starts.append(start)
    return min(starts, default=None)


def repeated_tail(words: Sequence[str]) -> int | None:
    """Return where the end of a text repeats what stands before it, from the second round on; None where it does not.

    It may be a loop that has just begun.
    """
    starts: list[int] = []
    for length in range(1, len(words) // 2 + 1):
        place = len(words)
        while place > length and words[place - 1] == words[place - 1 - length]:
            place -= 1
        if len(words) - place >= length:
            starts.append(place)
    return min(starts, default=None)


def _second_round(words: Sequence[str], length: int, min_rounds: int) -> int | None:
    """Return where `length` words are said again, of so many rounds at least."""
    run = 0
    for place in range(length, len(words)):
        run = run + 1 if words[place] == words[place - length] else 0
        if run == (min_rounds - 1) * length:
            return place - run + 1
    return None
