"""JSON values as calls carry them: numbers stay as they are written, and every value is written compactly."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

MAX_DEPTH = 128  # of nested values; deeper ones make no call
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(NamedTuple):
    """A number by its JSON text: no digit of it is lost, and none added."""

    text: str


Value: TypeAlias = "str | bool | Number | list[Value] | dict[str, Value] | None"


def number_of(text: str) -> Number | None:
    """Return the number that a text is; None: it is no JSON number."""
    return Number(text) if _NUMBER.fullmatch(text) else None


def is_whole(number: Number) -> bool:
    """Say whether a number has no fraction."""
    written = _NUMBER.fullmatch(number.text)
    if written is None or written[2]:
        return written is not None and float(number.text).is_integer()
    return not (written[1] or "").strip(".0")


def whole(number: Number) -> Number:
    """Write a number without its fraction of zeros, where it has one: `3.0` becomes `3`."""
    whole_part, _, fraction = number.text.partition(".")
    return Number(whole_part) if fraction and not fraction.strip("0") else number


def read_json(text: str) -> Value:
    """Read JSON text; of equal keys the last one counts, and a string may hold line breaks as they are.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return cast(
            "Value",
            json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse, strict=False),
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write(value: Value) -> str:
    """Write a value as JSON without white space."""
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts)


def has_surrogates(text: str) -> bool:
    """Say whether a text has halves of characters in it, which UTF-8 cannot carry."""
    return _SURROGATE.search(text) is not None


def _write(value: Value, put: Callable[[str], None]) -> None:
    match value:
        case str():
            put(json.dumps(value, ensure_ascii=has_surrogates(value)))
        case Number():
            put(value.text)
        case list():
            _write_items(value, put)
        case dict():
            _write_members(value, put)
        case _:
            put({True: "true", False: "false", None: "null"}[value])


def _write_items(items: "list[Value]", put: Callable[[str], None]) -> None:
    put("[")
    for index, item in enumerate(items):
        put("," if index else "")
        _write(item, put)
    put("]")


def _write_members(members: "dict[str, Value]", put: Callable[[str], None]) -> None:
    put("{")
    for index, (key, value) in enumerate(members.items()):
        put("," if index else "")
        _write(key, put)
        put(":")
        _write(value, put)
    put("}")


def _refuse(word: str) -> Value:
    raise ValueError(f"{word} is no JSON")
