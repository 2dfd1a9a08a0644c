"""One sequence's way through a grammar: which tokens may follow, which must, and whether it is at the end.

Nothing here is shared with another sequence, not even what llguidance remembers of a grammar as it goes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from worker.constraints.complaints import refusal_of
from worker.constraints.grammar import Grammar
from worker.constraints.matching import Matcher, MatcherFailed, check
from worker.constraints.tokens import ConstrainedTokens
from worker.errors import ConstraintInvalid, FieldError
from worker.sequence import TokenNotAllowedError

MAX_SKIPPED = 64
# What is forced is cut anew for each token of it; a text without end is thousands of tokens long.
MAX_FORCED_WORK = 2048

_UNFIT = "doesn't satisfy the grammar"
_DEAD_END = "NoExtension"
_UNWRITABLE = "TextUnwritable"


class GrammarConstraint:
    """Restricts the tokens of one sequence to a grammar. One thread at a time may use it.

    The first call prepares the grammar unless that is done already, in the milliseconds that it takes to compile.

    Args:
        make_matcher: compiles the grammar.
        grammar: for errors.
        tokens: of the model.
        named: special tokens that the grammar names, and so allows.
    """

    def __init__(
        self, make_matcher: Callable[[], Matcher], grammar: Grammar, tokens: ConstrainedTokens, named: frozenset[int]
    ) -> None:
        self._make_matcher = make_matcher
        self._made: Matcher | None = None
        self._grammar = grammar
        self._tokens = tokens
        self._named = named
        self._forbidden = frozenset(tokens.special_ids.values()) - named - tokens.eos_ids
        # `~` in a grammar means all other bytes, those of special tokens too.
        self._open = tokens.text_bits | tokens.bits(named) if named else tokens.text_bits

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow, an end token left out."""
        return self._made is not None and self._made.is_stopped() and not self._made.is_error()

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn, in microseconds.

        Raises:
            TokenNotAllowedError: it may not follow.
            FieldError: the grammar turned out to be over its limits.
        """
        matcher = self._matcher()
        if self.is_complete or not self._may_be_consumed(matcher, token_id):
            raise TokenNotAllowedError(f"token {token_id} may not follow")
        if not matcher.consume_token(token_id):
            raise self._failure(matcher.get_error())

    def skip(self) -> tuple[int, ...]:
        """Take the tokens that are the only allowed ones, one after the other, and return them.

        Each of them is what the mask at its place allows, and nothing else.

        Returns:
            Token ids, at most 64; where there are that many, more may be forced still.

        Raises:
            FieldError: the grammar turned out to be over its limits.
        """
        matcher = self._matcher()
        skipped: list[int] = []
        work = 0
        while len(skipped) < MAX_SKIPPED and work < MAX_FORCED_WORK and not self.is_complete:
            forced = matcher.compute_ff_tokens()
            self._check(matcher)
            if not forced:
                break
            self.advance(forced[0])
            skipped.append(forced[0])
            work += len(forced)
        return tuple(skipped)

    def mask(self) -> NDArray[np.uint32]:
        """Compute which tokens may come next, without Python's lock; some 0.05 ms, at most some 15.

        Returns:
            uint32 [ceil(V / 32)], of its own: bit i % 32 of word i // 32 is set where token i may come next. An end
            may where the grammar is satisfied.

        Raises:
            ConstraintInvalid: no token of the model may follow, and no end.
            FieldError: the grammar turned out to be over its limits.
        """
        if self.is_complete:
            return self._tokens.end_bits.copy()
        matcher = self._matcher()
        words = np.empty(-(-self._tokens.vocabulary.vocab_size // 32), np.uint32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check(matcher)
        mask = words[: len(self._open)] & self._open
        if matcher.is_accepting():
            mask |= self._tokens.end_bits
        if not mask.any():
            raise self._dead_end()
        return mask

    def _matcher(self) -> Matcher:
        if self._made is None:
            try:
                self._made = self._make_matcher()
            except MatcherFailed as error:
                raise self._failure(str(error)) from None
        return self._made

    def _may_be_consumed(self, matcher: Matcher, token_id: int) -> bool:
        """Whether a token is text, named, or an end where there may be one."""
        if not 0 <= token_id < self._tokens.vocab_size:
            return False
        if token_id in self._tokens.eos_ids and token_id not in self._named:
            return matcher.is_accepting()
        return token_id not in self._forbidden

    def _check(self, matcher: Matcher) -> None:
        try:
            check(matcher)
        except MatcherFailed as error:
            raise self._failure(str(error)) from None

    def _failure(self, message: str) -> Exception:
        if _UNFIT in message:
            return TokenNotAllowedError("the token may not follow")
        if _DEAD_END in message:
            return self._dead_end()
        if _UNWRITABLE in message:
            return ConstraintInvalid(self._grammar.path, "no tokens of this model write a text that it demands")
        return refusal_of(message, self._grammar.kind).at(self._grammar.path)

    def _dead_end(self) -> FieldError:
        return ConstraintInvalid(self._grammar.path, "no token of this model may follow")
