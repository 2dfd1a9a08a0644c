"""Splits streamed text into content and calls: what all dialects share.

White space that touches a call, at most 64 characters before it and all after it, belongs to the call: templates write
it there themselves. All other text comes out as it is. Text that begins a call and then cannot be one is content at
once, and what follows is looked at afresh; so is what a dialect reads to the close of a call without finding sense in
it. What is still open at the end of the text is content.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.reader import MAX_SPACES, NotACallError, Opens, Reader, Reading

_SPACES = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a dialect's calls begin and are read.

    Attributes:
        opens: marks that begin one wherever they come.
        read: reads from there to the end of the calls that this begins.
        initial: characters that begin one where nothing but white space came before.
        following: characters that begin one right after another.
    """

    opens: Opens
    read: Callable[[Reader, Coercion], Reading[list[ToolCall]]]
    initial: str = ""
    following: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the text, and what it is: content, calls, or white space that belongs to a call."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    is_content: bool = False


class CallParser:
    """Reads the content of one sequence; see `worker.dialects.dialect.ToolParser`."""

    def __init__(self, syntax: Syntax, tools: Mapping[str, Tool]) -> None:
        self.num_malformed = 0
        self._syntax = syntax
        self._coercion = Coercion(tools)
        self._reader = Reader()
        self._reading: Reading[list[ToolCall]] | None = None
        self._early = syntax.initial
        self._is_after_call = False
        self._spaces = ""

    @property
    def num_mismatched(self) -> int:
        """Values that do not fit their declared type."""
        return self._coercion.num_mismatched

    def add(self, text: str) -> list[str | ToolCall]:
        """Read what follows."""
        return _shown(self.pieces(text))

    def finish(self) -> list[str | ToolCall]:
        """Return what was held back."""
        return _shown(self.last_pieces())

    def pieces(self, text: str) -> list[Piece]:
        """Do what `add` does; the texts of all pieces together are the whole text."""
        self._reader.feed(text)
        pieces: list[Piece] = []
        while self._reading is not None or self._begins_call(pieces):
            if not self._go_on(pieces):
                break
        return pieces

    def last_pieces(self) -> list[Piece]:
        """Do what `finish` does, in pieces."""
        self._reader.is_ended = True
        pieces = self.pieces("")
        if self._reading is not None:
            self._reader.skip_all()
            self._reject(pieces)
        if self._spaces:
            pieces.append(Piece(self._spaces, is_content=True))
            self._spaces = ""
        return pieces

    def _begins_call(self, pieces: list[Piece]) -> bool:
        """Pass over content, and say whether a call may begin where that ends."""
        count, begins = self._reader.seek(self._syntax.opens, self._early)
        self._reader.skip(count)
        self._put(self._reader.taken(), pieces)
        if begins:
            self._reading = self._syntax.read(self._reader, self._coercion)
        return begins

    def _go_on(self, pieces: list[Piece]) -> bool:
        """Read on, and say whether the call is decided."""
        if self._reading is None:
            return True
        try:
            next(self._reading)
        except StopIteration as end:
            self._accept(end.value, pieces)
        except NotACallError:
            self._reject(pieces)
        else:
            return False
        return True

    def _accept(self, calls: list[ToolCall], pieces: list[Piece]) -> None:
        self._reading = None
        self._early = self._syntax.following
        self._is_after_call = True
        pieces.append(Piece(self._spaces + self._reader.taken(), tuple(calls)))
        self._spaces = ""

    def _reject(self, pieces: list[Piece]) -> None:
        self._reading = None
        text = self._reader.taken() or self._reader.skip(1)
        self._reader.taken()
        self.num_malformed += text.startswith(self._syntax.opens.marks)
        self._put(text, pieces)

    def _put(self, text: str, pieces: list[Piece]) -> None:
        """Send content on, except for white space that may yet touch a call."""
        if self._is_after_call:
            content = text.lstrip(_SPACES)
            if len(content) < len(text):
                pieces.append(Piece(text[: len(text) - len(content)]))
            text = content
        if not text:
            return
        text = self._spaces + text
        visible = text.rstrip(_SPACES)
        if visible:
            self._early, self._is_after_call = "", False
        end = max(len(visible), len(text) - MAX_SPACES)
        self._spaces = text[end:]
        if end:
            pieces.append(Piece(text[:end], is_content=True))


def _shown(pieces: Iterable[Piece]) -> list[str | ToolCall]:
    shown: list[str | ToolCall] = []
    for piece in pieces:
        shown.extend(piece.calls)
        if piece.is_content:
            shown.append(piece.text)
    return shown
