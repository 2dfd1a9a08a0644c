"""`oneOf` where no value fits two of the alternatives, so that it says the same as `anyOf`; any other is refused."""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from worker.constraints.refusal import unsupported
from worker.constraints.subschemas import Schema, replaced

# Schemas that refer to each other are followed so far.
MAX_STEPS = 16

_ALL_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


class Exclusion:
    """Knows the definitions of a reduced schema, and what of two schemas excludes the other.

    Args:
        definitions: what `#/$defs/...` names.
    """

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def resolve(self, schema: Schema, where: str) -> Schema:
        """Return a schema with `anyOf` for each `oneOf` in it.

        Raises:
            Refused: two alternatives may fit the same value, as far as can be seen.
        """
        if isinstance(schema, bool):
            return schema
        if "oneOf" in schema:
            self._check(schema["oneOf"], where)
        inside = replaced(schema, where, self.resolve)
        if "oneOf" not in inside:
            return inside
        # A place of its own: the schema may have an `anyOf` already.
        alternatives = {"anyOf": inside.pop("oneOf")}
        return {**inside, "allOf": [*inside.get("allOf", []), alternatives]} if inside else alternatives

    def _check(self, alternatives: list[Schema], where: str) -> None:
        for (i, one), (j, other) in itertools.combinations(enumerate(alternatives), 2):
            if not self._excludes(one, other, 0):
                raise unsupported(
                    f"the keyword `oneOf` at {where} is not enforced: one value may fit both its alternatives {i} and "
                    f"{j}; give them a required property with different constants, or use anyOf"
                )

    def _excludes(self, one: Schema, other: Schema, steps: int) -> bool:
        if one is False or other is False:
            return True
        if isinstance(one, bool) or isinstance(other, bool) or steps > MAX_STEPS:
            return False
        if _differ(one, other) or self._differ_in_a_property(one, other, steps):
            return True
        return self._excluded_by_parts(one, other, steps) or self._excluded_by_parts(other, one, steps)

    def _excluded_by_parts(self, one: dict[str, Any], other: Schema, steps: int) -> bool:
        """Whether something that everything fitting `one` fits too excludes the other."""
        wider: list[Schema] = list(one.get("allOf", []))
        if "$ref" in one:
            wider.append(self._definitions.get(one["$ref"].removeprefix("#/$defs/"), True))
        if any(self._excludes(each, other, steps + 1) for each in wider):
            return True
        choices = (one[key] for key in ("anyOf", "oneOf") if key in one)
        return any(all(self._excludes(each, other, steps + 1) for each in choice) for choice in choices)

    def _differ_in_a_property(self, one: dict[str, Any], other: dict[str, Any], steps: int) -> bool:
        if _types(one) & _types(other) != frozenset({"object"}):
            return False
        names = {*one.get("required", ()), *other.get("required", ())}
        return any(self._excludes(_property(one, name), _property(other, name), steps + 1) for name in names)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if not _types(one) & _types(other):
        return True
    values = _values(one), _values(other)
    return values[0] is not None and values[1] is not None and not values[0] & values[1]


def _property(schema: Mapping[str, Any], name: str) -> Schema:
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the only values that can fit, as JSON; None where that is not said."""
    if "const" in schema:
        return {_json(schema["const"])}
    return {_json(value) for value in schema["enum"]} if "enum" in schema else None


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    if "type" in schema:
        given = schema["type"]
        names = cast("list[str]", given) if isinstance(given, list) else [given]
        return frozenset("number" if name == "integer" else name for name in names)
    if "const" in schema:
        return _types_of([schema["const"]])
    return _types_of(schema["enum"]) if "enum" in schema else _ALL_TYPES


def _types_of(values: Iterable[object]) -> frozenset[str]:
    names = {"bool": "boolean", "int": "number", "float": "number", "str": "string", "list": "array", "dict": "object"}
    return frozenset(names.get(type(value).__name__, "null") for value in values)


def _json(value: object) -> str:
    """Write a value, so that equal ones are written equally: JSON Schema has 1 and 1.0 the same."""
    if isinstance(value, dict):
        named = cast("Mapping[str, object]", value)
        return "{" + ",".join(f"{json.dumps(name)}:{_json(named[name])}" for name in sorted(named)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, cast("list[object]", value))) + "]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
