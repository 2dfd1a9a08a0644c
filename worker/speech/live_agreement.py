"""What successive hypotheses of an utterance that is still spoken agree on: text that does not change any more.

Words that two hypotheses in a row share are stable, and later hypotheses are made to begin with them. Never trusted are
the last word, for more of it may be to come, and what repeats itself: a model in a loop agrees with itself.
Plain Python. Idea: Macháček et al. 2023, arXiv:2307.14743, local agreement of two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from worker.speech.live_loops import loop_start, repeated_tail

_NO_LETTERS = "PSZ"  # Unicode's classes of punctuation, symbols and spaces


@dataclass(frozen=True, slots=True)
class Piece:
    """A word of a hypothesis, or a punctuation mark; with the space before it."""

    text: str
    tokens: tuple[int, ...]

    @property
    def word(self) -> str:
        """What must be alike for two words to be the same; empty for punctuation."""
        return "".join(char for char in self.text.casefold() if unicodedata.category(char)[0] not in _NO_LETTERS)


def pieces_of(words: Sequence[tuple[str, Sequence[int]]]) -> tuple[Piece, ...]:
    """Return what a tokenizer's `split_words` found."""
    return tuple(Piece(text, tuple(tokens)) for text, tokens in words)


def tokens_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the tokens of pieces."""
    return tuple(token for piece in pieces for token in piece.tokens)


class Agreement:
    """The stable text of one utterance.

    Attributes:
        tokens: of the stable text; only ever grows at its end.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self.tokens: tuple[int, ...] = ()
        self._last: tuple[Piece, ...] = ()

    def hear(self, pieces: Sequence[Piece]) -> None:
        """Take another hypothesis; one that does not begin with the stable text counts for nothing."""
        if tokens_of(pieces)[: len(self.tokens)] != self.tokens:
            return
        trusted = trusted_part(pieces)
        agreed = tokens_of(_shared(self._last, trusted))
        self._last = trusted
        if len(agreed) > len(self.tokens):
            self.tokens = agreed


def trusted_part(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return a hypothesis up to its last word, or to where it begins to repeat itself."""
    places = [place for place, piece in enumerate(pieces) if piece.word]
    words = [pieces[place].word for place in places]
    stop = max(0, len(words) - 1)
    for repeated in (loop_start(words), repeated_tail(words)):
        stop = stop if repeated is None else min(stop, repeated)
    return tuple(pieces[: places[stop]]) if places else ()


def _shared(before: Sequence[Piece], now: Sequence[Piece]) -> Sequence[Piece]:
    """Return the start of `now` whose words `before` starts with too; without punctuation behind the last of them."""
    known = [piece.word for piece in before if piece.word]
    num_alike = stop = 0
    for place, piece in enumerate(now):
        if not piece.word:
            continue
        if num_alike == len(known) or known[num_alike] != piece.word:
            break
        num_alike += 1
        stop = place + 1
    return now[:stop]
