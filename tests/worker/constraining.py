"""Constraints that tests say everything of."""

from collections.abc import Sequence as Items

import numpy as np

from tests.support.tiny_models import VOCAB_SIZE
from worker.errors import ConstraintTooComplex
from worker.masks import Mask, packed
from worker.sequence import TokenNotAllowedError


class Anything:
    """Allows all tokens, for ever."""

    is_complete = False

    def advance(self, token_id: int) -> None:
        """Take any token."""

    def skip(self) -> tuple[int, ...]:
        """Force nothing."""
        return ()

    def mask(self) -> Mask | None:
        """Forbid nothing."""
        return None


class Choices:
    """Lets one of some tokens come at each place.

    Args:
        choices: the tokens that may come, by place.
        is_whole: whether nothing may follow them; else anything may.
        skips: whether places with one choice are forced; else they are masked like the others.
        fails_at: the place where it gives up; None: nowhere.
    """

    def __init__(
        self,
        choices: Items[Items[int]],
        *,
        is_whole: bool = False,
        skips: bool = True,
        fails_at: int | None = None,
    ) -> None:
        self._left = [list(place) for place in choices]
        self._is_whole = is_whole
        self._skips = skips
        self._left_at_failure = None if fails_at is None else len(self._left) - fails_at

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._is_whole and not self._left

    def advance(self, token_id: int) -> None:
        """Take a token."""
        if self._left and token_id not in self._left.pop(0):
            raise TokenNotAllowedError(f"token {token_id}")

    def skip(self) -> tuple[int, ...]:
        """Take the tokens that have no alternative.

        Raises:
            ConstraintTooComplex: the place where it gives up is reached.
        """
        skipped: list[int] = []
        while self._skips and self._left and len(self._left[0]) == 1:
            skipped += self._left.pop(0)
        if self._left_at_failure is not None and len(self._left) <= self._left_at_failure:
            raise ConstraintTooComplex("spec.constraint", "it is")
        return tuple(skipped)

    def mask(self) -> Mask | None:
        """Return what may come."""
        if not self._left:
            return None
        return packed(np.isin(np.arange(VOCAB_SIZE), self._left[0]))


def spells(token_ids: Items[int]) -> Choices:
    """Return what lets these tokens come in order, one by one, and then anything."""
    return Choices([[token_id] for token_id in token_ids], skips=False)
