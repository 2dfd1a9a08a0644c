"""Random generation under a grammar, with a tokenizer of bytes and of the marks that are to be special tokens."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

END = 256
FIRST_SPECIAL = 257
MAX_TOKENS = 4000
# What closes something: with bytes alone it would rarely be written.
WISHES = [*'"}])\n,', "</parameter>", "\n</parameter>", "</arg_value>", "</param>", '<|"|>', "</function>", "]]>"]


class ByteTokens:
    """What llguidance asks of a tokenizer."""

    def __init__(self, special: Sequence[str]) -> None:
        self.eos_token_id = END
        self.bos_token_id = None
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *(mark.encode() for mark in special)]
        self.special_token_ids = [END, *range(FIRST_SPECIAL, FIRST_SPECIAL + len(special))]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Generator:
    """Writes texts under one grammar.

    Args:
        marks: those that are special tokens.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._tokens = ByteTokens(marks)
        self._tokenizer = LLTokenizer(TokenizerWrapper(self._tokens), n_vocab=len(self._tokens.tokens))

    @staticmethod
    def special(marks: Sequence[str]) -> Mapping[str, int]:
        return {mark: FIRST_SPECIAL + index for index, mark in enumerate(marks)}

    def write(self, grammar: str, source: random.Random) -> str | None:
        """Return what was written until the grammar allowed an end and it was drawn; None: it went on for too long."""
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar))
        ids: list[int] = []
        wish: list[int] = []
        while len(ids) < MAX_TOKENS:
            allowed = self._allowed(matcher)
            if not matcher.is_error() and END in allowed and (source.random() < 0.5 or len(allowed) == 1):
                return b"".join(self._tokens.tokens[each] for each in ids).decode()
            wish = wish or list(source.choice(WISHES).encode()) if source.random() < 0.9 else []
            chosen = (
                wish.pop(0) if wish and wish[0] in allowed else source.choice([each for each in allowed if each != END])
            )
            wish = wish if wish and chosen < END else []
            assert matcher.consume_token(chosen), matcher.get_error()
            ids.append(chosen)
        return None

    def _allowed(self, matcher: LLMatcher) -> list[int]:
        mask = allocate_token_bitmask(1, len(self._tokens.tokens))
        fill_next_token_bitmask(matcher, mask)
        assert not matcher.is_error(), matcher.get_error()
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(self._tokens.tokens)]
        return [int(each) for each in np.flatnonzero(bits)]
