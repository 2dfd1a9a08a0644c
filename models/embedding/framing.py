"""The tokens of a text as its model reads it: special tokens around it, a prompt before it, and a length to keep to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

# Any text that a tokenizer makes tokens of.
_PROBE = "a"


class Cut(Enum):
    """What is done with a text that is too long: nothing, or its end or its beginning is left out."""

    NONE = "none"
    END = "end"
    BEGINNING = "beginning"


class Encoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class Framed:
    """The tokens of one input.

    Attributes:
        ids: as the model reads them.
        is_cut: whether some were left out.
    """

    ids: array[int]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """What a tokenizer puts around every text, such as the end-of-text token of Qwen3-Embedding.

    Attributes:
        lead: before it.
        tail: behind it.
    """

    lead: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Encoder) -> Ends:
        """Read them off a short text: a post-processor adds the same tokens to every text."""
        plain, whole = tokenizer.encode(_PROBE, False), tokenizer.encode(_PROBE, True)
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return cls(tuple(whole[:start]), tuple(whole[start + len(plain) :]))
        return cls()

    def around_tokens(self, ids: Sequence[int]) -> tuple[tuple[int, ...], Sequence[int], tuple[int, ...]]:
        """Tell apart the special tokens that a caller has put around tokens: lead, the tokens between, and tail."""
        inner = ids
        lead, tail = self.lead, self.tail
        if tuple(inner[: len(lead)]) != lead:
            lead = ()
        inner = inner[len(lead) :]
        if not tail or tuple(inner[-len(tail) :]) != tail:
            return lead, inner, ()
        return lead, inner[: len(inner) - len(tail)], tail


def common_start(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    count = 0
    for one, other in zip(ids, others, strict=False):
        if one != other:
            return count
        count += 1
    return count


def fit(head: Sequence[int], body: Sequence[int], tail: Sequence[int], max_tokens: int, cut: Cut) -> Framed | None:
    """Put the parts of an input behind one another, within a length.

    Args:
        head: special tokens and the prompt: never cut.
        body: the text.
        tail: special tokens: never cut.
        max_tokens: of all parts together.
        cut: what may be left out of `body`, as much as must be.

    Returns:
        None where it is too long and nothing may be left out, or where nothing of `body` would be left.
    """
    excess = len(head) + len(body) + len(tail) - max_tokens
    if excess <= 0:
        return Framed(array("I", (*head, *body, *tail)))
    if cut is Cut.NONE or excess >= len(body):
        return None
    kept = body[: len(body) - excess] if cut is Cut.END else body[excess:]
    return Framed(array("I", (*head, *kept, *tail)), is_cut=True)
