"""A JSON Schema reduced to what is enforced: every keyword of it is checked, or refused by its name and place.

What comes out has the keywords that llguidance enforces and no others, and all that is referred to under `$defs`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from worker.constraints.exclusive import Exclusion
from worker.constraints.inhabited import without_endless
from worker.constraints.keywords import (
    BOUNDS,
    COUNTS,
    DRAFTS,
    HARMLESS,
    LIST_OF_SCHEMAS,
    MAP_OF_SCHEMAS,
    ONE_SCHEMA,
    SUPPORTED,
    UNSUPPORTED,
)
from worker.constraints.refusal import invalid, too_complex, unsupported
from worker.constraints.schema_values import COUNTED_LIMITS, check_bound, check_value, count_of, settle_bounds
from worker.constraints.subschemas import Schema, pointer

# llguidance reads JSON 128 levels deep, and wraps the schema in a few.
MAX_DEPTH = 96
MAX_PROPERTIES = 2000
MAX_PATTERNS = 64
# One rule for each property that may be the one that is there: the work grows with the third power.
MAX_COUNTED_PROPERTIES = 32
# A model writes one line, with the spaces that it has seen most, and has nowhere to go on for ever.
SPACING: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # No `\\u`: a name written with it would not be seen to be the name of a property.
    "json_allowed_escapes": 'nrbtf\\"',
}


def enforced_schema(text: str) -> dict[str, Any]:
    """Reduce a schema to what llguidance is to enforce, with the spacing of what is generated.

    Args:
        text: JSON.

    Raises:
        Refused: no JSON, no valid schema, a keyword that is not enforced, or too deep.
    """
    return enforced_value(_parse(text))


def enforced_value(document: object) -> dict[str, Any]:
    """Do as `enforced_schema` does, with a document that is parsed already."""
    root = _Reduction(document).run()
    return {"x-guidance": dict(SPACING), **root}


def _parse(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise too_complex(f"more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        place = f": line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise invalid(f"it is no JSON{place}") from None


def _refuse_constant(name: str) -> object:
    raise invalid(f"it is no JSON: {name} is no JSON number")


class _Reduction:
    """One pass over a document: the root, then whatever is referred to."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._waiting: list[str] = []
        self._draft: str | None = None

    def run(self) -> dict[str, Any]:
        self._draft = self._read_draft()
        root = self.schema(self._document, "#", 0)
        definitions: dict[str, Schema] = {}
        while self._waiting:
            where = self._waiting.pop()
            definitions[self._names[where]] = self.schema(self._target(where), where, 0)
        root, definitions = self._settle(*without_endless(root, definitions))
        whole: dict[str, Any] = {"$schema": self._draft} if self._draft else {}
        whole |= {"allOf": [root]} if isinstance(root, bool) else root
        return whole | ({"$defs": definitions} if definitions else {})

    def _settle(self, root: Schema, definitions: dict[str, Schema]) -> tuple[Schema, dict[str, Schema]]:
        exclusion = Exclusion(definitions)
        places = {name: where for where, name in self._names.items()}
        settled = {name: exclusion.resolve(each, places[name]) for name, each in definitions.items()}
        return exclusion.resolve(root, "#"), settled

    def schema(self, value: object, where: str, depth: int) -> Schema:
        if isinstance(value, bool):
            return value
        if depth > MAX_DEPTH:
            raise too_complex(f"{where[:80]}: more than {MAX_DEPTH} levels deep")
        given = _object(value, where)
        reduced: dict[str, Any] = {}
        for key, part in given.items():
            if key in UNSUPPORTED and not (isinstance(part, bool) and (key, part) in HARMLESS):
                raise unsupported(f"the keyword `{key}` at {where} is not enforced")
            if key in SUPPORTED:
                reduced |= self._keyword(key, part, where, depth)
        if where != "#" and {"$id", "id"} & given.keys() and isinstance(given.get("$id", given.get("id")), str):
            raise unsupported(f"the keyword `$id` at {where}: only the whole document may have one")
        _check_together(reduced, where)
        settle_bounds(reduced)
        return reduced

    def _keyword(self, key: str, part: object, where: str, depth: int) -> dict[str, Any]:
        place = pointer(where, key)
        if key == "$ref":
            return {key: self._refer(part, place)}
        if key in COUNTS:
            return {key: count_of(part, place)}
        if key in BOUNDS:
            check_bound(key, part, place)
            return {key: part}
        inside = self._inside(key)
        return check_value(key, part, place) if inside is None else {key: inside(part, place, depth)}

    def _inside(self, key: str) -> Callable[[object, str, int], object] | None:
        if key in MAP_OF_SCHEMAS:
            return self._map
        if key in LIST_OF_SCHEMAS:
            return self._list
        return self._one if key in ONE_SCHEMA else None

    def _one(self, part: object, place: str, depth: int) -> object:
        inside = self._list if place.endswith("/items") and _is_list(part) else self.schema
        return inside(part, place, depth + 1)

    def _list(self, part: object, place: str, depth: int) -> list[Schema]:
        parts = _list(part, place)
        if not parts and not place.endswith("tems"):
            raise invalid(f"{place} is an empty list")
        return [self.schema(each, pointer(place, index), depth + 2) for index, each in enumerate(parts)]

    def _map(self, part: object, place: str, depth: int) -> dict[str, Schema]:
        parts = _object(part, place)
        most = MAX_PATTERNS if place.endswith("/patternProperties") else MAX_PROPERTIES
        if len(parts) > most:
            raise too_complex(f"{place}: {len(parts)} names; at most {most}")
        if most == MAX_PATTERNS:
            for pattern in parts:
                check_value("pattern", pattern, place)
        return {name: self.schema(each, pointer(place, name), depth + 2) for name, each in parts.items()}

    def _refer(self, part: object, place: str) -> str:
        if not isinstance(part, str):
            raise invalid(f"{place} is no text")
        if not part.startswith("#"):
            raise unsupported(f"{place} leads out of this document")
        where = "#" + unquote(part[1:]).rstrip("/")
        if len(where) > 1 and not where.startswith("#/"):
            raise unsupported(f"{place} names an anchor; only a path such as #/$defs/name is followed")
        if where not in self._names:
            self._target(where)
            self._names[where] = f"r{len(self._names)}"
            self._waiting.append(where)
        return f"#/$defs/{self._names[where]}"

    def _target(self, where: str) -> object:
        found = self._document
        for part in where.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = cast("dict[str, object]", found)[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(cast("list[object]", found)):
                found = cast("list[object]", found)[int(name)]
            else:
                raise invalid(f"`$ref`: nothing is at {where}")
        return found

    def _read_draft(self) -> str | None:
        if not isinstance(self._document, dict):
            return None
        draft: object = cast("dict[str, object]", self._document).get("$schema")
        if draft is None:
            return None
        if not isinstance(draft, str) or draft.rstrip("#") not in DRAFTS:
            raise unsupported("`$schema` names no version that this build knows")
        return draft


def _check_together(reduced: Mapping[str, Any], where: str) -> None:
    """Refuse counts of properties that cannot be kept, or not in time."""
    least, most = reduced.get("minProperties", 0), reduced.get("maxProperties")
    required = reduced.get("required", [])
    if least > len(required) + 1:
        raise unsupported(
            f"the keyword `minProperties` at {where} is not enforced above the number of required names and one more, "
            "as other names may repeat"
        )
    num_optional = len(reduced.get("properties", {}).keys() - set(required))
    if (least > len(required) or most is not None) and num_optional > MAX_COUNTED_PROPERTIES:
        counted = f"{COUNTED_LIMITS} at {where}"
        raise too_complex(f"{counted}: {num_optional} optional properties; at most {MAX_COUNTED_PROPERTIES}")


def _is_list(part: object) -> bool:
    return isinstance(part, list)


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise invalid(f"{where} is neither an object nor true or false")
    return cast("dict[str, object]", value)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise invalid(f"{where} is no list")
    return cast("list[object]", value)
