"""A model's tokenizer as llguidance takes it: the exact bytes of every token, and how a plain text is cut into them.

Where a grammar allows one text only, the model is given the tokens that it would write that text with itself. They are
found by encoding the text, never by reading a special token out of it.
"""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.tokenizer import EncodeError
from worker.constraints.matching import Vocabulary, make_vocabulary

# In front of a text that is cut, so that a tokenizer that puts a space before every text puts it there.
GUARD = "\x02"
# Text that is forced is cut so far; only the first token is taken of it before it is cut again. Of the last few
# llguidance takes back what could also be written otherwise.
MAX_ENCODED_CHARS = 512
MAX_CHOPPED = 16
WORD_BITS = 32
# As llguidance has it, but for tokens by their numbers.
SPECIAL_NAME = re.compile(r"<[^<>\s\[][^<>\s]*>")
# Never in UTF-8.
MARKER = b"\xff"


class Tokenizer(Protocol):
    """The part of a checkpoint's tokenizer that constraints need."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that the tokenizer itself says end a text."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; nothing for a special token and for an id that is none."""
        ...

    def special_bytes(self, token_id: int) -> bytes:
        """Return the text of a special token; nothing for any other id."""
        ...


class TextUnwritable(Exception):
    """Raised when no tokens of the model write a text."""


@dataclass(frozen=True, slots=True)
class ConstrainedTokens:
    """A vocabulary that constraints can be compiled for.

    Attributes:
        vocabulary: as llguidance takes it.
        vocab_size: logits of the model; ids from here on there are none.
        eos_ids: ids that end a text.
        special_ids: ids of special tokens, those of ends too, by their name in a lark grammar: their text where it has
            the form of a name there.
        text_bits: uint32 [ceil(V / 32)], a mask of all that is text; not to be changed.
        end_bits: a mask of the ends; not to be changed.
    """

    vocabulary: Vocabulary
    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: dict[str, int]
    text_bits: NDArray[np.uint32]
    end_bits: NDArray[np.uint32]

    def bits(self, ids: Iterable[int]) -> NDArray[np.uint32]:
        """Return a mask, uint32 [ceil(V / 32)], with the bits of these ids set."""
        return _bits(ids, self.vocab_size)


def constrained_tokens(tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> ConstrainedTokens:
    """Build the vocabulary of a model; takes some 0.2 s for 50,000 tokens, so when the model is loaded.

    Args:
        tokenizer: of the checkpoint.
        vocab_size: logits of the model; more or less than the tokenizer has tokens.
        eos_ids: ids that end a text, beside those that the tokenizer names.
    """
    ends = frozenset(token_id for token_id in {*eos_ids, *tokenizer.eos_token_ids} if 0 <= token_id < vocab_size)
    special = _names(tokenizer, vocab_size, ends)
    words = [b"" if token_id in special else tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
    _drop_unusable(words)
    cutter = _Cutter(tokenizer, tuple(words), frozenset(special))
    named = [special[token_id].encode() if token_id in special else word for token_id, word in enumerate(words)]
    vocabulary = make_vocabulary(named, sorted(special), sorted(ends), cutter.cut)
    cutter.vocabulary = vocabulary
    names = {name: token_id for token_id, name in special.items()}
    text_bits = _bits((token_id for token_id in range(vocab_size) if token_id not in special), vocab_size)
    return ConstrainedTokens(vocabulary, vocab_size, ends, names, text_bits, _bits(ends, vocab_size))


def _bits(ids: Iterable[int], vocab_size: int) -> NDArray[np.uint32]:
    flags = np.zeros(-(-vocab_size // WORD_BITS) * WORD_BITS, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)


def _names(tokenizer: Tokenizer, vocab_size: int, ends: Set[int]) -> dict[int, str]:
    """Return what a lark grammar calls each special token, and each end, which is no part of a text either."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for token_id in range(vocab_size):
        text = tokenizer.special_bytes(token_id).decode("utf-8", "replace")
        if text or token_id in ends:
            is_name = SPECIAL_NAME.fullmatch(text) and text not in taken
            names[token_id] = text if is_name else f"<token:{token_id}>"
            taken.add(text)
    return names


def _drop_unusable(words: list[bytes]) -> None:
    """Take the bytes of ids that are no part of any text.

    Of tokens of the same bytes the last stays, which is the one that a text is encoded to, as bytes come first. No text
    has the byte that llguidance puts in front of special tokens.
    """
    last = {word: token_id for token_id, word in enumerate(words)}
    for token_id, word in enumerate(words):
        if last[word] != token_id or MARKER in word:
            words[token_id] = b""


class _Cutter:
    """Cuts plain text into tokens.

    Attributes:
        vocabulary: to cut into the longest tokens with; set as soon as there is one.
    """

    def __init__(self, tokenizer: Tokenizer, words: Sequence[bytes], special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._words = words
        self._special_ids = special_ids
        self._guard = tokenizer.encode(GUARD, False)
        self.vocabulary: Vocabulary | None = None

    def cut(self, text: str) -> list[int]:
        """Return the ids of a text, none of them special; of a long one those of its beginning.

        Raises:
            TextUnwritable: no tokens write it.
        """
        ids = self._encoded(text[:MAX_ENCODED_CHARS])
        if ids is not None and (len(text) <= MAX_ENCODED_CHARS or len(ids) > MAX_CHOPPED):
            return ids
        return self._longest(text)

    def _encoded(self, text: str) -> list[int] | None:
        """Return the tokens that the tokenizer makes of a text; None where they do not write exactly it."""
        try:
            ids = self._tokenizer.encode(text, False)
            if self._writes(ids, text):
                return ids
            guarded = self._tokenizer.encode(GUARD + text, False)
        except EncodeError:
            return None
        rest = guarded[len(self._guard) :]
        return rest if guarded[: len(self._guard)] == self._guard and self._writes(rest, text) else None

    def _longest(self, text: str) -> list[int]:
        ids = [] if self.vocabulary is None else self.vocabulary.greedy_tokenize(text)
        if not self._writes(ids, text):
            raise TextUnwritable("no tokens of the model write this text")
        return ids

    def _writes(self, ids: Sequence[int], text: str) -> bool:
        are_plain = all(token_id < len(self._words) and token_id not in self._special_ids for token_id in ids)
        return are_plain and b"".join(self._words[token_id] for token_id in ids) == text.encode()
