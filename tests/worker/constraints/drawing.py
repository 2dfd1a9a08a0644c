"""Draws whole texts under a constraint, as a model that knows nothing would: from random logits at temperature 2."""

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.tokenizer import Tokenizer
from worker.constraints.constraint import GrammarConstraint
from worker.constraints.grammar import Grammar, Kind
from worker.constraints.matching import make_matcher
from worker.constraints.source import source_of
from worker.constraints.tokens import ConstrainedTokens

TEMPERATURE = 2.0
MAX_TOKENS = 2000
# From here on what closes is more and more likely, so that every text comes to an end.
PATIENCE = 40


def constraint_of(tokens: ConstrainedTokens, kind: Kind, text: str) -> GrammarConstraint:
    """Return a constraint without a child: what is tried there is not what these tests are about."""
    source = source_of(kind, text, tokens.special_ids)
    named = frozenset(tokens.special_ids[name] for name in source.special_tokens)
    grammar = Grammar(kind, text, f"spec.constraint.{kind}")
    return GrammarConstraint(lambda: make_matcher(tokens.vocabulary, source.text, kind), grammar, tokens, named)


def allowed_ids(mask: NDArray[np.uint32]) -> list[int]:
    """Return the ids whose bits are set."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


class Drawer:
    """Draws from the masks of one vocabulary.

    Args:
        tokenizer: of the vocabulary.
        tokens: made of it.
        rng: of the draws.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: ConstrainedTokens, rng: np.random.Generator) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._rng = rng
        words = [tokenizer.token_bytes(token_id) for token_id in range(tokens.vocab_size)]
        self._closes = np.array([_closing(word) for word in words])

    def draw(self, constraint: GrammarConstraint, *, skips: bool = False) -> list[int]:
        """Return the ids of one whole text, its end left out."""
        ids: list[int] = []
        while len(ids) < MAX_TOKENS:
            ids += constraint.skip() if skips else ()
            if constraint.is_complete:
                return ids
            token_id = self._next(constraint.mask(), len(ids))
            constraint.advance(token_id)
            if token_id in self._tokens.eos_ids:
                return ids
            ids.append(token_id)
        raise AssertionError(f"no end after {MAX_TOKENS} tokens: {self.text(ids)[:200]!r}")

    def text(self, ids: list[int]) -> str:
        """Return what these tokens say."""
        raw = b"".join(self._tokenizer.token_bytes(token_id) for token_id in ids)
        return raw.decode("utf-8")

    def _next(self, mask: NDArray[np.uint32], length: int) -> int:
        logits = self._rng.normal(0.0, 3.0, self._tokens.vocab_size) + self._closes * max(0, length - PATIENCE) / 4
        for end in self._tokens.eos_ids:
            logits[end] += max(0, length - PATIENCE)
        flags = np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._tokens.vocab_size]
        scaled = np.where(flags, logits / TEMPERATURE, -np.inf)
        weights = np.exp(scaled - scaled.max())
        return int(self._rng.choice(len(weights), p=weights / weights.sum()))


def _closing(word: bytes) -> float:
    """Return how much a token helps to an end: of a text, of what it is in, of the name in front of an address."""
    return 6.0 * (b'"' in word) + 5.0 * (b"@" in word) + 4.0 * (b"}" in word or b"]" in word)
