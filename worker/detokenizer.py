"""Token ids to text that is safe to send: whole code points only, and no longer than it takes to have one."""

import codecs
from collections.abc import Callable, Mapping
from types import MappingProxyType


class Detokenizer:
    """Turns one sequence's output tokens into text, piece by piece.

    The pieces joined equal the bytes of all tokens decoded at once, for every way of splitting. Bytes that can still
    become a code point wait for the next token; bytes that never can become U+FFFD, as does a code point that the end
    cuts off.

    Args:
        token_bytes: the bytes that a token id adds to the text; none for a special token.
        strip_leading_space: drop one space at the very start, which tokenizers of the SentencePiece kind put there.
        shown: the bytes of special tokens that add to the text all the same, such as marks.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        strip_leading_space: bool = False,
        shown: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self.token_bytes = token_bytes
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = strip_leading_space

    @property
    def is_within_character(self) -> bool:
        """Whether bytes wait that can still become a code point."""
        return self._decoder.getstate()[0] != b""

    def add(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        raw = self._shown.get(token_id) or self.token_bytes(token_id)
        return self._piece(self._decoder.decode(raw))

    def finish(self) -> str:
        """Return what is left when no token follows: U+FFFD for a code point that was cut off, else nothing."""
        return self._piece(self._decoder.decode(b"", final=True))

    def _piece(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
