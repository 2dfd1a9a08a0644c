"""Splits a sequence's text into reasoning and content; the marks between them are in neither.

Templates write line breaks around the marks that belong to no channel: those right behind an opening mark, right before
a closing one and right behind it are left out. So is a mark that has nothing to open or close. All of it is a matter of
the whole text: the channels come out the same however the text is cut into pieces.
"""

from dataclasses import dataclass
from enum import Enum

from worker.events import Channel
from worker.reasoning import ReasoningMarks, Start

BREAK = "\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one channel."""

    channel: Channel
    text: str


class _Place(Enum):
    BEFORE = "before"  # nothing but line breaks so far, which belong to the content unless an opening mark follows
    OPENED = "opened"  # reasoning, and nothing but line breaks of it
    REASONING = "reasoning"
    CLOSED = "closed"  # behind a closing mark, and nothing but line breaks since
    CONTENT = "content"
    VERBATIM = "verbatim"  # content in which no mark is looked for


_REASONING = frozenset({_Place.OPENED, _Place.REASONING})


class ChannelSplitter:
    """Reads the text of one sequence.

    Args:
        marks: of the model; None: all is content.
        start: where the prompt left the model.
        is_content_verbatim: the content is a constraint's, so once it has begun it is handed on as it is.
    """

    def __init__(self, marks: ReasoningMarks | None, start: Start, *, is_content_verbatim: bool = False) -> None:
        self._marks = marks
        self._content = _Place.VERBATIM if marks is None or is_content_verbatim else _Place.CONTENT
        self._is_verbatim = is_content_verbatim
        self._held = ""
        self._place = self._content
        if marks is not None and start is not Start.BEHIND:
            self._place = _Place.OPENED if start is Start.INSIDE else _Place.BEFORE

    @property
    def channel(self) -> Channel:
        """The channel that the text read so far ends in."""
        return Channel.REASONING if self._place in _REASONING else Channel.CONTENT

    @property
    def held(self) -> str:
        """The end of the text that is not told yet: line breaks and the beginning of a mark."""
        return self._held

    def add(self, text: str) -> list[Piece]:
        """Read what follows and return what is settled by it, pieces of one channel joined."""
        if self._marks is None or self._place is _Place.VERBATIM:
            return _joined([Piece(Channel.CONTENT, text)])
        self._held += text
        pieces: list[Piece] = []
        before = None
        while self._held and before != (self._held, self._place):
            before = (self._held, self._place)
            pieces.append(self._step(self._marks))
        return _joined(pieces)

    def finish(self) -> list[Piece]:
        """Return what is held when nothing follows."""
        held, self._held = self._held, ""
        if self._place in {_Place.OPENED, _Place.CLOSED}:
            held = held.lstrip(BREAK)
        return _joined([Piece(self.channel, held)])

    def _step(self, marks: ReasoningMarks) -> Piece:
        """Read on from the held text as far as the place stays the same."""
        match self._place:
            case _Place.BEFORE:
                return self._begin(marks)
            case _Place.CLOSED:
                return self._skip_breaks()
            case _Place.VERBATIM:
                return self._take(len(self._held))
            case _:
                return self._read(marks)

    def _begin(self, marks: ReasoningMarks) -> Piece:
        begun = self._held.lstrip(BREAK)
        if begun.startswith(marks.open):
            self._held = begun[len(marks.open) :]
            self._place = _Place.OPENED
        elif not marks.open.startswith(begun):
            self._place = self._content
        return Piece(Channel.CONTENT, "")

    def _skip_breaks(self) -> Piece:
        self._held = self._held.lstrip(BREAK)
        if self._held:
            self._place = self._content
        return Piece(Channel.CONTENT, "")

    def _read(self, marks: ReasoningMarks) -> Piece:
        """Read up to the next mark and past it, or all that can be no part of one."""
        found = [(place, mark) for mark in (marks.open, marks.close) if (place := self._held.find(mark)) >= 0]
        if not found:
            return self._take(len(self._held) - self._num_kept(marks))
        place, mark = min(found)
        is_end = mark == marks.close and self._place in _REASONING
        piece = self._take(len(self._held[:place].rstrip(BREAK)) if is_end else place)
        self._held = self._held.lstrip(BREAK)[len(mark) :] if is_end else self._held[len(mark) :]
        if is_end:
            self._place = _Place.VERBATIM if self._is_verbatim else _Place.CLOSED
        elif mark == marks.open and self._place is _Place.CONTENT:
            self._place = _Place.OPENED
        return piece

    def _num_kept(self, marks: ReasoningMarks) -> int:
        """Return how much of the end of the held text may still belong to a mark."""
        num_kept = max(overlap(self._held, marks.open), overlap(self._held, marks.close))
        if self._place not in _REASONING:
            return num_kept
        before = self._held[: len(self._held) - num_kept]
        return num_kept + len(before) - len(before.rstrip(BREAK))

    def _take(self, length: int) -> Piece:
        text, self._held = self._held[:length], self._held[length:]
        piece = Piece(self.channel, text)
        if self._place is _Place.OPENED:
            piece = Piece(Channel.REASONING, text.lstrip(BREAK))
            if piece.text:
                self._place = _Place.REASONING
        return piece


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is a proper beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(mark[:length])), 0)


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].channel is piece.channel:
            joined[-1] = Piece(piece.channel, joined[-1].text + piece.text)
        elif piece.text:
            joined.append(piece)
    return joined
