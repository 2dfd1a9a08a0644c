"""Log-probabilities of an answer's tokens as people read them."""

import json
import math
from collections.abc import Iterable, Iterator

from pomona.v1 import generation_pb2

HEADERS = ("TOKEN", "LOGPROB", "CHANCE", "LIKELIEST")


def rows(tokens: Iterable[generation_pb2.TokenInfo]) -> Iterator[tuple[str, str, str, str]]:
    """Return a row of a table for each token: its text, log-probability, probability, and what else was likely."""
    for token in tokens:
        likeliest = ", ".join(f"{_quoted(each.raw)} {_chance(each.logprob)}" for each in token.alternatives)
        yield _quoted(token.raw), f"{token.logprob:.3f}", _chance(token.logprob), likeliest


def _quoted(raw: bytes) -> str:
    """Quote a token, so that its blanks and line ends show."""
    return json.dumps(raw.decode(errors="replace"), ensure_ascii=False)


def _chance(logprob: float) -> str:
    return f"{math.exp(logprob):.1%}"
