"""Arguments as Python writes them, `(a=1, b="x")`: keywords and plain values, read and never run.

JSON's words and escapes are read too: templates write values of history as JSON between Python's brackets.
"""

import re
from typing import NoReturn

from worker.dialects.values import Number, Value, has_surrogates

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*')
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<word>[^\W\d][\w.-]*)
    |(?P<sign>[()\[\]{},:=])
    |(?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_WORDS: dict[str, bool | None] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "null": None,
}


def read_arguments(text: str) -> dict[str, Value]:
    """Read keyword arguments with their brackets; of equal ones the last counts.

    Raises:
        ValueError: they are none, or hold anything but plain values.
    """
    tokens = _Tokens(text)
    tokens.expect("(")
    arguments: dict[str, Value] = {}
    while not tokens.skips(")"):
        key = tokens.take("word")
        tokens.expect("=")
        arguments[key] = _value(tokens)
        if not tokens.skips(","):
            tokens.expect(")")
            break
    tokens.take("end")
    return arguments


class _Tokens:
    """The tokens of a text, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._advance()

    def take(self, *kinds: str) -> str:
        """Return the next token, which must be of one of some kinds."""
        if self.kind not in kinds:
            self.fail()
        token = self.token
        if self.kind != "end":
            self._advance()
        return token

    def expect(self, sign: str) -> None:
        """Pass over a sign that must come."""
        if not self.skips(sign):
            self.fail()

    def skips(self, sign: str) -> bool:
        """Pass over a sign if it comes, and say whether it did."""
        comes = self.kind == "sign" and self.token == sign
        if comes:
            self._advance()
        return comes

    def fail(self) -> NoReturn:
        """Give up."""
        raise ValueError("no plain keyword arguments")

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._end)
        if match is None or match.lastgroup is None:
            self.fail()
        self._end = match.end()
        self.kind = match.lastgroup
        self.token = match[match.lastgroup]


def _value(tokens: _Tokens) -> Value:
    if tokens.skips("["):
        return _items(tokens)
    if tokens.skips("{"):
        return _members(tokens)
    kind = tokens.kind
    token = tokens.take("string", "number", "word")
    if kind == "string":
        return _unquoted(token)
    if kind == "number":
        return Number(token)
    if token not in _WORDS:
        tokens.fail()
    return _WORDS[token]


def _items(tokens: _Tokens) -> Value:
    items: list[Value] = []
    while not tokens.skips("]"):
        items.append(_value(tokens))
        if not tokens.skips(","):
            tokens.expect("]")
            break
    return items


def _members(tokens: _Tokens) -> Value:
    members: dict[str, Value] = {}
    while not tokens.skips("}"):
        key = _unquoted(tokens.take("string"))
        tokens.expect(":")
        members[key] = _value(tokens)
        if not tokens.skips(","):
            tokens.expect("}")
            break
    return members


def _unquoted(token: str) -> str:
    text = _ESCAPE.sub(_character, token[1:-1]) if "\\" in token else token[1:-1]
    if has_surrogates(text):  # JSON writes characters beyond U+FFFF as two
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _character(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    if digits is not None:
        return chr(code) if (code := int(digits, 16)) <= 0x10FFFF else escape[0]
    return _ESCAPED.get(escape[4], escape[0])
