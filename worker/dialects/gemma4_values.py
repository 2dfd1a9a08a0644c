"""Values as Gemma 4 writes them within a call."""

import re
from typing import Any

from worker.dialects.coercion import word_of
from worker.dialects.reader import Notation
from worker.dialects.schema import Schema
from worker.dialects.values import Value, number_of, read_json

QUOTE = '<|"|>'
GEMMA = Notation("{}[]", (QUOTE, '"'), ('"',), r'[^<>{}\[\]"]')
_MARKED = re.compile(rf"{re.escape(QUOTE)}(.*?){re.escape(QUOTE)}", re.DOTALL)
_QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_KEY = re.compile(r'[^<>{}\[\],:"]+')
_BARE = re.compile(r'[^<>{}\[\],"]+')
_SPACE = re.compile(r"\s*")


def read_object(text: str, schema: Schema) -> dict[str, Value]:
    """Read an object with its brackets; of equal keys the last one counts.

    Args:
        text: as written.
        schema: of the object; a bare value is text where it allows text.

    Raises:
        ValueError: it is none.
    """
    values = _Values(text, schema)
    values.expect("{")
    members = values.members(schema.root)
    if not values.is_done():
        raise ValueError("more than one object")
    return members


class _Values:
    """The rest of a text."""

    def __init__(self, text: str, schema: Schema) -> None:
        self._text = text
        self._schema = schema
        self._at = 0

    def is_done(self) -> bool:
        return self._next() == ""

    def expect(self, sign: str) -> None:
        if not self._skips(sign):
            raise ValueError(f"no {sign}")

    def members(self, declared: Any) -> dict[str, Value]:
        """Read what is left of an object."""
        shape = self._schema.part(declared, "object")
        members: dict[str, Value] = {}
        while not self._skips("}"):
            key = self._string()
            if key is None:
                key = self._taken(_KEY).strip()
            self.expect(":")
            members[key] = self._value(self._schema.member(shape, key))
            if not self._skips(","):
                self.expect("}")
                break
        return members

    def _items(self, declared: Any) -> list[Value]:
        each = self._schema.part(declared, "array").get("items")
        items: list[Value] = []
        while not self._skips("]"):
            items.append(self._value(each))
            if not self._skips(","):
                self.expect("]")
                break
        return items

    def _value(self, declared: Any) -> Value:
        if self._skips("{"):
            return self.members(declared)
        if self._skips("["):
            return self._items(declared)
        text = self._string()
        return self._bare(declared) if text is None else text

    def _bare(self, declared: Any) -> Value:
        text = self._taken(_BARE).strip()
        kinds = self._schema.kinds(declared) or frozenset[str]()
        kind, meant = word_of(text)
        if "string" in kinds and not (kind == "null" and "null" in kinds):
            return text
        return meant if kind else number_of(text) or text

    def _string(self) -> str | None:
        """Read a text between marks or quotes; None: there is none."""
        self._next()
        if (match := _MARKED.match(self._text, self._at)) is not None:
            self._at = match.end()
            return match[1]
        if (match := _QUOTED.match(self._text, self._at)) is not None:
            self._at = match.end()
            return str(read_json(match[0]))
        return None

    def _taken(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError("no value")
        self._at = match.end()
        return match[0]

    def _skips(self, sign: str) -> bool:
        comes = self._next() == sign
        self._at += comes
        return comes

    def _next(self) -> str:
        """Return the next character that is not white space."""
        if (space := _SPACE.match(self._text, self._at)) is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]
