"""Leads a sequence through its reasoning, and then hands it to a grammar.

Reasoning is free, but for its length: when a request's budget is spent its closing mark is put in. What comes behind
it, and all of an output without reasoning, is the grammar's, where there is one.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property

import numpy as np

from worker.channels import ChannelSplitter, overlap
from worker.detokenizer import Detokenizer
from worker.events import Channel
from worker.masks import WORD_BITS, Mask, packed
from worker.reasoning import ReasoningMarks, Start
from worker.sequence import Constraint

# A budget that ends within a character waits for its other bytes, which are never more.
MAX_CHARACTER_BYTES = 4


class MarkTokens:
    """The marks of one model in tokens.

    Args:
        marks: as text.
        encode: returns the tokens of a text, special tokens written out in it among them.
        token_bytes: what a token adds to the text.
        shown: the same of special tokens that are marks.
        vocab_size: token ids are below it.
        end_ids: what ends a text. Where a grammar waits behind the reasoning, they do not come inside it.
    """

    def __init__(
        self,
        marks: ReasoningMarks,
        encode: Callable[[str], list[int]],
        token_bytes: Callable[[int], bytes],
        shown: Mapping[int, bytes],
        vocab_size: int,
        *,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.marks = marks
        self.shown = shown
        self.token_bytes = token_bytes
        self._encode = encode
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The tokens that open reasoning; none where no tokens are exactly the mark."""
        return self._exactly(self.marks.open) or ()

    def closing(self, written: int = 0) -> tuple[int, ...]:
        """Return the tokens that close reasoning.

        Args:
            written: how many characters of the mark are there already.
        """
        whole = self._exactly(self.marks.close) or tuple(self._encode(self.marks.close))
        if written == 0 or len(whole) == 1:
            return whole
        return self._exactly(self.marks.close[written:]) or whole

    @cached_property
    def unmixed(self) -> tuple[Mask | None, ...]:
        """What may come where so many characters of the closing mark are there; None: everything.

        All tokens but those that end the text, and those in which the mark ends and something follows, which would
        begin the content unseen. Looks at every token of the vocabulary, which takes a tenth of a second or more.
        """
        close = self.marks.close
        last = close[-1].encode()
        candidates = {token_id: self._bytes(token_id) for token_id in range(self._vocab_size)}
        candidates = {token_id: raw for token_id, raw in candidates.items() if last in raw[:-1]}
        return tuple(self._without(candidates, close[:written].encode()) for written in range(len(close)))

    def _without(self, candidates: Mapping[int, bytes], written: bytes) -> Mask | None:
        close = self.marks.close.encode()
        mixed = [token_id for token_id, raw in candidates.items() if close in (written + raw)[:-1]]
        if not mixed and not self._end_ids:
            return None
        allowed = np.ones(self._vocab_size, dtype=bool)
        allowed[mixed + self._end_ids] = False
        return packed(allowed)

    def _exactly(self, text: str) -> tuple[int, ...] | None:
        """Return the tokens of a text; None where they write something else."""
        tokens = list(self._encode(text))
        while tokens and not self._bytes(tokens[0]).strip():
            del tokens[0]  # some tokenizers put a space before a text
        return tuple(tokens) if b"".join(map(self._bytes, tokens)) == text.encode() else None

    def _bytes(self, token_id: int) -> bytes:
        return self.shown.get(token_id) or self.token_bytes(token_id)


class _Place(Enum):
    FIRST = "first"  # nothing is drawn yet: reasoning may be opened, or the content begins
    OPENING = "opening"
    REASONING = "reasoning"
    CONTENT = "content"


class Guide:
    """What restricts one sequence of a model that reasons.

    Args:
        tokens: marks of the model.
        start: where the prompt left it.
        budget: tokens of reasoning after which it is closed; None: as many as it takes.
        content: restricts what is no reasoning; None: nothing does.
    """

    def __init__(
        self, tokens: MarkTokens, start: Start, *, budget: int | None = None, content: Constraint | None = None
    ) -> None:
        self._tokens = tokens
        self._budget = budget
        self._content = content
        self._num_reasoning = 0
        self._opens_at: bool = False
        self._detokenizer = Detokenizer(tokens.token_bytes, shown=tokens.shown)
        self._splitter = ChannelSplitter(tokens.marks, start, is_content_verbatim=content is not None)
        self._place = _Place.CONTENT
        if start is Start.INSIDE:
            self._place = _Place.REASONING
        elif start is Start.BEFORE and content is not None and budget != 0 and tokens.opening:
            self._place = _Place.FIRST

    @property
    def is_complete(self) -> bool:
        """Whether the grammar of the content is at its end."""
        return self._place is _Place.CONTENT and self._content is not None and self._content.is_complete

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        if self._place is _Place.FIRST:
            is_mark = self._opens_at and token_id == self._tokens.opening[0]
            self._place = _Place.OPENING if is_mark else _Place.CONTENT
        if self._place is _Place.CONTENT and self._content is not None:
            self._content.advance(token_id)
        else:
            self._read(token_id)

    def skip(self) -> tuple[int, ...]:
        """Return the tokens that come next in any case: the rest of a mark, or what the grammar alone allows."""
        forced = self._opened() + self._closed()
        if self._place is _Place.CONTENT and self._content is not None:
            forced += self._content.skip()
        return forced

    def mask(self) -> Mask | None:
        """Return which tokens may come next; None: all may."""
        if self._content is None:
            return None
        if self._place is _Place.FIRST:
            return self._first_mask(self._content)
        if self._place is _Place.REASONING:
            return self._tokens.unmixed[overlap(self._splitter.held, self._tokens.marks.close)]
        return self._content.mask()

    def _first_mask(self, content: Constraint) -> Mask | None:
        mask: Mask | None = content.mask()
        word, bit = divmod(self._tokens.opening[0], WORD_BITS)
        flag = np.uint32(1 << bit)
        # Where the content may begin with the same token, it is the content's.
        self._opens_at = mask is not None and not mask[word] & flag
        if mask is None or not self._opens_at:
            return mask
        opened = mask.copy()
        opened[word] |= flag
        return opened

    def _opened(self) -> tuple[int, ...]:
        if self._place is not _Place.OPENING:
            return ()
        rest = self._tokens.opening[1:]
        for token_id in rest:
            self._read(token_id)
        return rest

    def _closed(self) -> tuple[int, ...]:
        if self._place is not _Place.REASONING or not self._is_spent():
            return ()
        closing = self._tokens.closing(overlap(self._splitter.held, self._tokens.marks.close))
        for token_id in closing:
            self._read(token_id)
        return closing

    def _is_spent(self) -> bool:
        if self._budget is None or self._num_reasoning < self._budget:
            return False
        is_late = self._num_reasoning >= self._budget + MAX_CHARACTER_BYTES - 1
        return is_late or not self._detokenizer.is_within_character

    def _read(self, token_id: int) -> None:
        """Follow the text of a token that is no grammar's."""
        is_reasoning = self._place is _Place.REASONING
        self._splitter.add(self._detokenizer.add(token_id))
        self._num_reasoning += is_reasoning
        if self._splitter.channel is Channel.REASONING:
            self._place = _Place.REASONING
        elif is_reasoning or self._content is None:
            self._place = _Place.CONTENT
