"""Calls of llguidance: vocabularies and matchers, with its panics and silent failures as exceptions."""

from collections.abc import Callable, Sequence

import llguidance

from worker.constraints.grammar import Kind
from worker.constraints.limits import parser_limits

Vocabulary = llguidance.LLTokenizer
Matcher = llguidance.LLMatcher


class MatcherFailed(Exception):
    """Raised when llguidance fails on a grammar, with its words, which may show what the client wrote."""


class _Tokens:
    """The bytes of all tokens, in the form that llguidance asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Sequence[int],
        eos_token_id: int | None,
        tokenize: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_token_id
        self._tokenize = tokenize

    def __call__(self, text: str) -> list[int]:
        return self._tokenize(text)


def make_vocabulary(
    tokens: Sequence[bytes],
    special_ids: Sequence[int],
    eos_ids: Sequence[int],
    tokenize: Callable[[str], list[int]],
) -> Vocabulary:
    """Build a vocabulary; it takes some 0.2 s for 50,000 tokens, and Python's lock for most of it.

    Args:
        tokens: bytes of every id, of special tokens too; no bytes: an id that is never generated.
        special_ids: those that are no text.
        eos_ids: those that end a text.
        tokenize: plain text to ids, of which the first is what the model would write first.
    """
    wrapper = _Tokens(tokens, special_ids, eos_ids[0] if eos_ids else None, tokenize)
    return llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids) or None)  # pyright: ignore[reportArgumentType]


def make_matcher(vocabulary: Vocabulary, source: str, kind: Kind) -> Matcher:
    """Compile a grammar, without Python's lock.

    Raises:
        MatcherFailed: it cannot be compiled.
    """
    try:
        matcher = llguidance.LLMatcher(vocabulary, source, log_level=0, limits=parser_limits(kind))
    except BaseException as error:
        if not is_panic(error):
            raise
        raise MatcherFailed("panic: in the compiler") from None
    check(matcher)
    return matcher


def check(matcher: Matcher) -> None:
    """Raise what a matcher has not said.

    Raises:
        MatcherFailed: it has failed, now or before.
    """
    if matcher.is_error():
        raise MatcherFailed(matcher.get_error())


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up; such an error is no Exception, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"
