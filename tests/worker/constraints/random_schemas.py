"""Random JSON Schemas of every keyword that is enforced, each of which some value fits."""

import random
from typing import Any

Schema = dict[str, Any] | bool

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PATTERNS = (
    r"^[a-c]{1,4}$",
    r"^x-\d+$",
    r"^(foo|bar|baz)\w?$",
    r"^[^0-9\"\\]{2,5}$",
    r"^ab+c$",
    r"^[A-Z].?$",
    r"^(é|ü+)$",
)
TEXTS = ("", "a", 'quote " and \\', "line\nend\tab", "naïve café", "世界", "🙂", "{}", "</s>", "/path/")
NAMES = ("a", "b", "id", "name", "x y", "ключ", 'q"uote', "back\\slash")


class SchemaMaker:
    """Makes schemas from a seed.

    Args:
        seed: of all its choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self, depth: int = 3) -> Schema:
        """Return a schema that is at most so deep."""
        plain = [self._integer, self._number, self._string, self._constant, self._enum, self._types]
        nested = [self._object, self._array, self._any_of, self._one_of, self._all_of, self._map, self._reference]
        return self._random.choice(plain if depth == 0 else [*plain[:4], *nested, *nested])(depth)

    def _integer(self, _: int) -> Schema:
        low = self._random.randint(-1000, 1000)
        schema: dict[str, Any] = {"type": "integer"}
        bounds = self._random.choice(
            [
                {},
                {"minimum": low},
                {"maximum": low},
                {"minimum": low, "maximum": low + self._random.randint(10, 2000)},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + 20},
            ]
        )
        return schema | bounds | ({"multipleOf": self._random.choice([2, 3, 7])} if self._random.random() < 0.4 else {})

    def _number(self, _: int) -> Schema:
        low = self._random.choice([-3.5, -1, 0, 0.25, 2.75, 100])
        bounds = self._random.choice(
            [
                {},
                {"minimum": low},
                {"exclusiveMaximum": low},
                {"minimum": low, "maximum": low + 2.5},
                {"exclusiveMinimum": low, "maximum": low + 0.5},
                {"minimum": -0.5, "exclusiveMaximum": 0},
                {"multipleOf": self._random.choice([0.5, 0.25, 2])},
            ]
        )
        return {"type": "number"} | bounds

    def _string(self, _: int) -> Schema:
        demands = self._random.choice(
            [
                {},
                {"minLength": 3},
                {"maxLength": 5},
                {"minLength": 2, "maxLength": 4},
                {"pattern": self._random.choice(PATTERNS)},
                {"format": self._random.choice(FORMATS)},
                {"pattern": "^[a-z]+$", "minLength": 3, "maxLength": 6},
            ]
        )
        return {"type": "string"} | demands

    def _value(self) -> Any:
        number = self._random.choice([0, -7, 12345, 0.1, -2.5, 1e-7, 3.0, 123456.789])
        scalars = [None, True, False, number, self._random.choice(TEXTS)]
        return self._random.choice([*scalars, [1, "a", []], {"k": None, "l": {"m": [0.5]}}, {}])

    def _constant(self, _: int) -> Schema:
        return {"const": self._value()}

    def _enum(self, _: int) -> Schema:
        return {"enum": [self._value() for _ in range(self._random.randint(1, 5))]}

    def _types(self, _: int) -> Schema:
        names = self._random.sample(["null", "boolean", "integer", "number", "string", "array", "object"], 2)
        return {"type": names, "maxLength": 4, "maximum": 10, "maxItems": 2, "maxProperties": 1}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(NAMES, self._random.randint(0, 4))
        required = [name for name in names if self._random.random() < 0.6]
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        if required or self._random.random() < 0.5:
            schema["required"] = required
        if self._random.random() < 0.6:
            schema["additionalProperties"] = self._random.choice([False, self.schema(0)])
        if self._random.random() < 0.2 and schema.get("additionalProperties") is False and names and not required:
            schema[self._random.choice(["minProperties", "maxProperties"])] = 1
        return schema

    def _map(self, depth: int) -> Schema:
        return self._random.choice(
            [
                {
                    "type": "object",
                    "additionalProperties": self.schema(depth - 1),
                    "minProperties": 1,
                    "maxProperties": 3,
                },
                {"type": "object", "patternProperties": {"^s_": {"type": "string"}, "^n_": self.schema(depth - 1)}},
                {
                    "type": "object",
                    "patternProperties": {"^[a-f]{1,3}$": self.schema(depth - 1)},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ]
        )

    def _array(self, depth: int) -> Schema:
        item = self.schema(depth - 1)
        return self._random.choice(
            [
                {"type": "array", "items": item},
                {"type": "array", "items": item, "minItems": 1, "maxItems": 3},
                {"type": "array", "prefixItems": [item, {"type": "null"}], "items": False},
                {"type": "array", "prefixItems": [{"type": "boolean"}], "items": item, "minItems": 2, "maxItems": 4},
            ]
        )

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.schema(depth - 1) for _ in range(self._random.randint(1, 3))]}

    def _one_of(self, depth: int) -> Schema:
        def case(name: str) -> Schema:
            properties: dict[str, Any] = {"kind": {"const": name}, "value": self.schema(depth - 1)}
            return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}

        return {"oneOf": [case("one"), case("two"), {"type": "integer"}, {"type": ["string", "null"], "maxLength": 3}]}

    def _all_of(self, depth: int) -> Schema:
        left = {"type": "object", "properties": {"l": self.schema(depth - 1)}, "required": ["l"]}
        right = {"type": "object", "properties": {"r": self.schema(0)}}
        return {"allOf": [left, right], "description": "both"}

    def _reference(self, depth: int) -> Schema:
        tree = {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["value"],
            "additionalProperties": False,
        }
        # `#` is the whole document, whatever this is a part of, so it is only one where this is the root.
        return tree if depth == 3 else {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
