"""Reads a possible call from text that comes in pieces: the words that a dialect's reading is written in.

A reading is a generator: it yields where it needs text that is not there yet, and goes on once there is more. Each word
decides by the text alone, never by where it is cut, and keeps no more unread than it needs to decide.
"""

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

from worker.dialects.values import MAX_DEPTH

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]

MAX_NAME_CHARS = 128
MAX_SPACES = 64  # that a look ahead passes over
NAME = re.compile(r"[\w.:/-]+")
SPACE = re.compile(r"[ \t\r\n]*")
_SHORT_SPACE = re.compile(rf"[ \t\r\n]{{0,{MAX_SPACES}}}")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class NotACallError(Exception):
    """Raised when what was read can be no call of the dialect."""


class Notation:
    """How nested values are written.

    Args:
        brackets: those that nest, open and close.
        quotes: what a string begins and ends with.
        escapes: those of the quotes that a backslash keeps a string from ending at.
        filler: regular expression of a character that may stand outside of strings and brackets.
    """

    def __init__(self, brackets: str, quotes: tuple[str, ...], escapes: tuple[str, ...], filler: str) -> None:
        self.quotes = quotes
        self.filler = re.compile(f"(?:{filler})*")
        signs = [*quotes, *brackets]
        self.sign = re.compile(f"(?:{filler})*({'|'.join(re.escape(each) for each in signs)})")
        self.ends = {each: re.compile(re.escape(each) + (r"|\\" if each in escapes else "")) for each in quotes}


class Opens:
    """Marks that begin a call wherever they come."""

    def __init__(self, *marks: str) -> None:
        self.marks = marks
        self.pattern = re.compile("|".join(re.escape(each) for each in marks) or r"(?!)")


JSON = Notation("{}[]", ('"',), ('"',), r"[\s,:0-9+\-.eEtrufalsn]")


class Reader:
    """The text of one sequence that is not decided yet.

    Attributes:
        is_ended: no more follows.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self._text = ""
        self._at = 0
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        """Append what follows."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def taken(self) -> str:
        """Return what was read since the last time."""
        taken = "".join(self._taken)
        self._taken.clear()
        return taken

    def skip(self, count: int) -> str:
        """Read some characters that are there, and return them."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        self._taken.append(text)
        return text

    def skip_all(self) -> None:
        """Read all that is there."""
        self.skip(len(self._text) - self._at)

    def seek(self, opens: "Opens", early: str) -> tuple[int, bool]:
        """Look for where a call may begin.

        Args:
            opens: the marks that begin one.
            early: characters that begin one where only white space comes before.

        Returns:
            How many unread characters are certain to come before it, and whether it is there.
        """
        first = SPACE.match(self._text, self._at)
        start = self._at if first is None else first.end()
        if start < len(self._text) and self._text[start] in early:
            return start - self._at, True
        if (found := opens.pattern.search(self._text, self._at)) is not None:
            return found.start() - self._at, True
        held = 0 if self.is_ended else max((self._overlap(mark) for mark in opens.marks), default=0)
        return len(self._text) - self._at - held, False

    def literal(self, text: str) -> Reading[None]:
        """Read this text and no other."""
        yield from self.one_of(text)

    def one_of(self, *texts: str) -> Reading[str]:
        """Read one of some texts, of which none begins another, and return it."""
        longest = max(map(len, texts))
        while True:
            rest = self._text[self._at : self._at + longest]
            for each in texts:
                if rest.startswith(each):
                    return self.skip(len(each))
            if not any(each.startswith(rest) for each in texts):
                raise NotACallError
            yield

    def space(self) -> Reading[None]:
        """Read white space, where there is any."""
        while True:
            self._skip_match(SPACE)
            if self._at < len(self._text):
                return
            yield

    def name(self) -> Reading[str]:
        """Read a name of a tool, which ends before the first character that can be in none."""
        while True:
            match = NAME.match(self._text, self._at, self._at + MAX_NAME_CHARS + 1)
            end = self._at if match is None else match.end()
            if end - self._at > MAX_NAME_CHARS or (match is None and self._at < len(self._text)):
                raise NotACallError
            if end < len(self._text):
                return self.skip(end - self._at)
            yield

    def until(self, mark: str, max_chars: int | None = None) -> Reading[str]:
        """Read through a mark, and return what is before it: at most so many characters."""
        parts: list[str] = []
        room = max_chars
        while True:
            end = self._text.find(mark, self._at)
            count = (end if end >= 0 else len(self._text) - self._overlap(mark)) - self._at
            parts.append(self.skip(count if room is None else min(count, room)))
            if room is not None and (room := room - count) < 0:
                raise NotACallError
            if end >= 0:
                self.skip(len(mark))
                return "".join(parts)
            yield

    def ahead(self, *texts: str) -> Reading[str | None]:
        """Return which of some texts comes after white space, and read nothing; None: none of them."""
        longest = max(map(len, texts))
        while True:
            match = _SHORT_SPACE.match(self._text, self._at)
            start = self._at if match is None else match.end()
            rest = self._text[start : start + longest]
            for each in texts:
                if rest.startswith(each):
                    return each
            if self.is_ended or not any(each.startswith(rest) for each in texts):
                return None
            yield

    def bracketed(self, opening: str, notation: Notation) -> Reading[str]:
        """Read an opening bracket and all through the one that closes it, and return that."""
        yield from self.literal(opening)
        return opening + (yield from self.rest_of(_CLOSING[opening], notation))

    def rest_of(self, closing: str, notation: Notation) -> Reading[str]:
        """Read through the bracket that closes one which was read, and return that."""
        start = len(self._taken)
        open_brackets = [closing]
        while open_brackets:
            sign = yield from self._sign(notation)
            if sign in notation.quotes:
                yield from self._string(sign, notation)
            elif sign in _CLOSING:
                open_brackets.append(_CLOSING[sign])
            elif open_brackets.pop() != sign:
                raise NotACallError
            if len(open_brackets) > MAX_DEPTH:
                raise NotACallError
        return "".join(self._taken[start:])

    def _sign(self, notation: Notation) -> Reading[str]:
        """Read through the next quote or bracket, and return it."""
        while (match := notation.sign.match(self._text, self._at)) is None:
            self._skip_match(notation.filler)
            rest = self._text[self._at : self._at + max(map(len, notation.quotes))]
            if not any(each.startswith(rest) for each in notation.quotes):
                raise NotACallError
            yield
        self.skip(match.end() - self._at)
        return match[1]

    def _string(self, quote: str, notation: Notation) -> Reading[None]:
        """Read the rest of a string."""
        while True:
            match = notation.ends[quote].search(self._text, self._at)
            if match is None:
                self.skip(len(self._text) - self._overlap(quote) - self._at)
            elif match[0] == quote:
                self.skip(match.end() - self._at)
                return
            elif match.end() < len(self._text):
                self.skip(match.end() + 1 - self._at)
                continue
            else:
                self.skip(match.start() - self._at)
            yield

    def _skip_match(self, pattern: re.Pattern[str]) -> None:
        if (match := pattern.match(self._text, self._at)) is not None and match.end() > self._at:
            self.skip(match.end() - self._at)

    def _overlap(self, mark: str) -> int:
        """Return how many unread characters, at the end, may be the beginning of a mark."""
        for count in range(min(len(mark) - 1, len(self._text) - self._at), 0, -1):
            if self._text.endswith(mark[:count]):
                return count
        return 0
