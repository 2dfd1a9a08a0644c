"""Arguments come out by the declared schema, and never beyond it."""

import json
import time
from typing import Any

import pytest

from worker.dialects.call import Tool
from worker.dialects.coercion import Coercion

DEFINITIONS = {"count": {"type": "integer"}, "self": {"$ref": "#/$defs/self"}}


def of_text(schema: Any, text: str) -> tuple[str, int]:
    """Return the JSON that a bare text becomes under a schema, and how many values did not fit."""
    root = {"type": "object", "properties": {"x": schema}, "$defs": DEFINITIONS}
    coercion = Coercion({"f": Tool("f", "", root)})
    call = coercion.call_of_texts("f", {"x": text})
    assert call.arguments_json.startswith('{"x":')
    return call.arguments_json[len('{"x":') : -1], coercion.num_mismatched


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "text", "becomes"),
    [
        (STRING, "3.0", '"3.0"'),
        (STRING, "null", '"null"'),
        (STRING, " true\n", '" true\\n"'),
        (STRING, "2025-06-15T10:30:00Z", '"2025-06-15T10:30:00Z"'),
        ({}, "3", '"3"'),
        (True, "[1]", '"[1]"'),
        (None, "null", '"null"'),
        (INTEGER, "3", "3"),
        (INTEGER, " -3.0\n", "-3"),
        (INTEGER, "3.000", "3"),
        (INTEGER, "1e3", "1e3"),
        (INTEGER, "123456789012345678901234567890", "123456789012345678901234567890"),
        (NUMBER, "3.0", "3.0"),
        (NUMBER, "0.10000000000000000001", "0.10000000000000000001"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": "null"}, "None", "null"),
        ({"type": "array"}, '[1.0, "a"]', '[1.0,"a"]'),
        ({"type": "array", "items": INTEGER}, "[1.0, 2]", "[1,2]"),
        ({"type": "object"}, '{"b": 1, "a": {"c": null}}', '{"b":1,"a":{"c":null}}'),
        ({"type": "object", "properties": {"n": INTEGER}}, '{"n": 2.0, "m": 2.0}', '{"n":2,"m":2.0}'),
        ({"type": "object", "additionalProperties": INTEGER}, '{"n": 2.0}', '{"n":2}'),
        ({"type": ["integer", "null"]}, "null", "null"),
        ({"type": ["integer", "boolean"]}, "true", "true"),
        ({"type": ["string", "integer"]}, "5", '"5"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": "integer", "nullable": True}, "null", "null"),
        ({"anyOf": [INTEGER, {"type": "array", "items": INTEGER}]}, "[2.0]", "[2]"),
        ({"oneOf": [STRING, INTEGER]}, "5", '"5"'),
        ({"anyOf": [INTEGER, {}]}, "5", '"5"'),
        ({"allOf": [INTEGER, {"minimum": 1}]}, "5.0", "5"),
        ({"allOf": [{"type": ["integer", "string"]}, INTEGER]}, "5", "5"),
        ({"$ref": "#/$defs/count"}, "5", "5"),
        ({"$ref": "#/$defs/self"}, "5", '"5"'),
        ({"$ref": "elsewhere"}, "5", '"5"'),
        ({"enum": [1, 2, 3]}, "2", "2"),
        ({"enum": ["1", "2"]}, "2", '"2"'),
        ({"const": False}, "false", "false"),
    ],
)
def test_a_text_becomes_what_is_declared(schema: Any, text: str, becomes: str) -> None:
    assert of_text(schema, text) == (becomes, 0)


@pytest.mark.parametrize(
    ("schema", "text", "stays"),
    [
        (INTEGER, "3.5", "3.5"),
        (INTEGER, "three", '"three"'),
        (INTEGER, "007", '"007"'),
        (INTEGER, "0x10", '"0x10"'),
        (INTEGER, "1e999", "1e999"),
        (INTEGER, "NaN", '"NaN"'),
        (NUMBER, "1,5", '"1,5"'),
        ({"type": "boolean"}, "yes", '"yes"'),
        ({"type": "boolean"}, "1", '"1"'),
        ({"type": "array"}, "[1", '"[1"'),
        ({"type": "array"}, "['a']", "\"['a']\""),
        ({"type": "object"}, "[1]", '"[1]"'),
        ({"type": "array", "items": INTEGER}, '["a"]', '["a"]'),
        ({"type": "array"}, "[" * 100_000, json.dumps("[" * 100_000)),
    ],
)
def test_what_fits_nothing_declared_stays_as_written_and_is_counted(schema: Any, text: str, stays: str) -> None:
    assert of_text(schema, text) == (stays, 1)


def test_arguments_of_an_unknown_tool_stay_as_written() -> None:
    assert Coercion({}).call_of_texts("f", {"a": "3", "b": "null"}).arguments_json == '{"a":"3","b":"null"}'


def test_arguments_that_are_not_declared_stay_as_written() -> None:
    coercion = Coercion({"f": Tool("f", "", {"type": "object", "properties": {"a": INTEGER}})})
    assert coercion.call_of_texts("f", {"b": "3", "a": "3"}).arguments_json == '{"b":"3","a":3}'


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
def test_a_schema_that_refers_to_itself_in_every_branch_costs_little(union: str) -> None:
    root: dict[str, Any] = {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {}}
    for name in "abcdefghij":
        root["$defs"][name] = {union: [{"$ref": f"#/$defs/{other}"} for other in "abcdefghij"]}
    started = time.process_time()
    assert Coercion({"f": Tool("f", "", root)}).call_of_texts("f", {"x": "5"}).name == "f"
    assert time.process_time() - started < 1
