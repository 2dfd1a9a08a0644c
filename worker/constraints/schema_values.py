"""Checks of the keywords of a schema that hold plain values."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from worker.constraints.keywords import FORMATS, TYPES
from worker.constraints.refusal import invalid, too_complex, unsupported

# Numbers are compared as 64-bit floating point.
MAX_NUMBER = 2**53 - 1
# A number's remainder is kept digit by digit, in as many states.
MAX_MULTIPLE = 10_000
MAX_COUNT = 2**31 - 1
MAX_DEPTH = 96
COUNTED_LIMITS = "`minProperties` and `maxProperties`"

_NUDGE = 1e-12
_UNWRITABLE = "control characters other than tab and the ends of lines and pages are not written"
_ESCAPE = re.compile(r"\\(?:[xuU](?:(?P<code>[0-9A-Fa-f]{2,8})|\{(?P<braced>[0-9A-Fa-f]{1,8})\})|.)", re.DOTALL)
_CONTROL_ESCAPES = frozenset({r"\a", r"\v", r"\0"})


def count_of(part: object, place: str) -> int:
    """Return a count, which JSON may also write as 3.0.

    Raises:
        Refused: it is none.
    """
    if isinstance(part, bool) or not isinstance(part, int | float) or part < 0 or part % 1:
        raise invalid(f"{place} is no count")
    if part > MAX_COUNT:
        raise too_complex(f"{place} is above {MAX_COUNT}")
    return int(part)


def check_bound(key: str, part: object, place: str) -> None:
    """Check a bound of numbers.

    Raises:
        Refused: no number, or one that is not compared exactly.
    """
    if isinstance(part, bool) and key.startswith("exclusive"):
        return  # as draft 4 has it
    if not isinstance(part, int | float) or isinstance(part, bool):
        raise invalid(f"{place} is no number")
    _check_number(part, place)
    if key == "multipleOf":
        if part <= 0:
            raise invalid(f"{place} is not above 0")
        digits = int("".join(map(str, Decimal(str(part)).normalize().as_tuple().digits)))
        if digits > MAX_MULTIPLE or part > MAX_MULTIPLE:
            raise too_complex(f"{place} has a value above {MAX_MULTIPLE}, its point left out")


def settle_bounds(reduced: dict[str, Any]) -> None:
    """Write exclusive bounds as numbers, and none of them whole: llguidance lets a whole one in (0 in `0 < x < 0.5`).

    The numbers that this leaves out are within a millionth of a millionth of the bound, or of a thousandth of it.

    Args:
        reduced: a schema with checked bounds; is changed.
    """
    for key, inclusive, side in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        bound = reduced.get(key)
        if isinstance(bound, bool):  # as draft 4 has it
            del reduced[key]
            bound = reduced.pop(inclusive, None) if bound else None
        if bound is None:
            continue
        is_whole = bound == int(bound) and reduced.get("type") != "integer"
        reduced[key] = bound + side * _NUDGE * 10 ** max(0, len(str(abs(int(bound)))) - 3) if is_whole else bound


def check_value(key: str, part: object, place: str) -> dict[str, Any]:
    """Check `const`, `enum`, `type`, `required`, `pattern` or `format`, and return what is left of it.

    Raises:
        Refused: it has a value of another kind, or one that is not enforced.
    """
    match key:
        case "type":
            _check_type(part, place)
        case "const":
            _check_json(part, place, 0)
        case "enum":
            _check_list(part, place)
            _check_json(part, place, 0)
        case "required":
            _check_names(part, place)
        case "pattern":
            _check_pattern(part, place)
        case "format" if isinstance(part, str) and part not in FORMATS:
            raise unsupported(f"the `format` {part[:40]!r} at {place} is not enforced")
        case _:
            if not isinstance(part, str):
                raise invalid(f"{place} is no text")
            _check_json(part, place, 0)
    return {key: part}


def _check_pattern(part: object, place: str) -> None:
    if not isinstance(part, str):
        raise invalid(f"{place} is no text")
    _check_text(part, place)
    for escape in _ESCAPE.finditer(part):
        code = escape["code"] or escape["braced"]
        if escape[0] in _CONTROL_ESCAPES or (code and _is_unwritable(int(code, 16))):
            raise unsupported(f"{place}: {_UNWRITABLE}")


def _check_names(part: object, place: str) -> None:
    if not all(isinstance(name, str) for name in _check_list(part, place, may_be_empty=True)):
        raise invalid(f"{place} has a name that is no text")


def _check_type(part: object, place: str) -> None:
    names: list[object] = cast("list[object]", part) if isinstance(part, list) else [part]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise invalid(f"{place} is none of {', '.join(sorted(TYPES))}")


def _check_list(part: object, place: str, *, may_be_empty: bool = False) -> list[object]:
    if not isinstance(part, list) or not (part or may_be_empty):
        raise invalid(f"{place} is no list" if not isinstance(part, list) else f"{place} is an empty list")
    return cast("list[object]", part)


def _check_json(part: object, place: str, depth: int) -> None:
    """Check a value that is to be written as it is."""
    if depth > MAX_DEPTH:
        raise too_complex(f"{place[:80]}: more than {MAX_DEPTH} levels deep")
    if isinstance(part, str):
        _check_text(part, place)
    elif isinstance(part, int | float):
        _check_number(part, place)
    elif part is not None:
        for each in _parts(part):
            _check_json(each, place, depth + 1)


def _parts(part: object) -> list[object]:
    if isinstance(part, dict):
        named = cast("Mapping[str, object]", part)
        return [*named, *named.values()]
    return cast("list[object]", part)


def _check_text(text: str, place: str) -> None:
    for character in text:
        if _is_unwritable(ord(character)):
            raise unsupported(f"{place}: {_UNWRITABLE}")


def _is_unwritable(code: int) -> bool:
    """Whether JSON writes a character by its number only; llguidance would leave such a one out of a constant."""
    return (code < ord(" ") and chr(code) not in "\b\t\n\f\r") or code == 0x7F


def _check_number(number: float, place: str) -> None:
    if not math.isfinite(number):
        raise invalid(f"{place} is no finite number")
    if abs(number) > MAX_NUMBER:
        raise unsupported(f"{place}: numbers beyond 2^53 are not compared exactly")
