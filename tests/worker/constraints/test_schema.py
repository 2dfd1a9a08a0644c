"""What of a schema is enforced, and what is refused by name and place."""

import json
from typing import Any

import pytest

from worker.constraints.keywords import UNSUPPORTED
from worker.constraints.refusal import Reason, Refused
from worker.constraints.schema import MAX_DEPTH, enforced_schema, enforced_value

CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}


def refusal_of(schema: Any) -> Refused:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(Refused) as caught:
        enforced_schema(text)
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED))
def test_refuses_a_keyword_that_is_not_enforced_by_its_name_and_place(keyword: str) -> None:
    refused = refusal_of({"type": "object", "properties": {"a/b": {"items": {keyword: {"type": "string"}}}}})

    assert refused.reason is Reason.UNSUPPORTED
    assert f"`{keyword}` at #/properties/a~1b/items" in refused.problem


@pytest.mark.parametrize(
    "schema",
    [{"uniqueItems": False}, {"nullable": False}, {"unevaluatedProperties": True}, {"unevaluatedItems": True}],
)
def test_takes_a_keyword_that_asks_for_nothing(schema: dict[str, Any]) -> None:
    assert schema.keys().isdisjoint(enforced_value(schema))


def test_takes_a_property_that_is_called_like_a_keyword() -> None:
    schema = {"type": "object", "properties": {"not": {"type": "string"}, "if": {"const": {"uniqueItems": True}}}}

    assert enforced_value(schema)["properties"] == schema["properties"]


def test_leaves_out_annotations_and_names_that_no_version_knows() -> None:
    schema = {"title": "t", "description": "d", "x-order": 1, "default": {"not": 1}, "type": "string"}

    assert enforced_value(schema).keys() == {"x-guidance", "type"}


def test_a_client_does_not_set_the_spacing() -> None:
    assert enforced_value({"x-guidance": {"whitespace_flexible": True}})["x-guidance"]["whitespace_flexible"] is False


@pytest.mark.parametrize(
    ("schema", "reason", "problem"),
    [
        ("{", Reason.INVALID, "it is no JSON: line 1, column 2"),
        ("", Reason.INVALID, "it is no JSON: line 1, column 1"),
        ('{"minimum": NaN}', Reason.INVALID, "NaN is no JSON number"),
        ("[]", Reason.INVALID, "# is neither an object nor true or false"),
        ("[" * 100_000, Reason.TOO_COMPLEX, "levels deep"),
        ({"properties": []}, Reason.INVALID, "#/properties is neither"),
        ({"anyOf": {}}, Reason.INVALID, "#/anyOf is no list"),
        ({"anyOf": []}, Reason.INVALID, "#/anyOf is an empty list"),
        ({"enum": []}, Reason.INVALID, "#/enum is an empty list"),
        ({"type": "text"}, Reason.INVALID, "#/type is none of"),
        ({"required": [1]}, Reason.INVALID, "#/required has a name"),
        ({"pattern": 1}, Reason.INVALID, "#/pattern is no text"),
        ({"minItems": -1}, Reason.INVALID, "#/minItems is no count"),
        ({"minItems": 1.5}, Reason.INVALID, "#/minItems is no count"),
        ('{"minItems": 1e999}', Reason.INVALID, "#/minItems is no count"),
        ({"maxLength": 2**40}, Reason.TOO_COMPLEX, "#/maxLength is above"),
        ({"minimum": "1"}, Reason.INVALID, "#/minimum is no number"),
        ('{"maximum": 1e999}', Reason.INVALID, "#/maximum is no finite number"),
        ({"maximum": 2**53}, Reason.UNSUPPORTED, "beyond 2^53"),
        ({"const": [2**60]}, Reason.UNSUPPORTED, "beyond 2^53"),
        ({"multipleOf": 0}, Reason.INVALID, "#/multipleOf is not above 0"),
        ({"multipleOf": 100_003}, Reason.TOO_COMPLEX, "#/multipleOf"),
        ({"multipleOf": 0.00012345}, Reason.TOO_COMPLEX, "#/multipleOf"),
        ({"format": "binary"}, Reason.UNSUPPORTED, "the `format` 'binary' at #/format"),
        ({"const": "a\x01"}, Reason.UNSUPPORTED, "#/const: control characters"),
        ({"enum": ["a\x7f"]}, Reason.UNSUPPORTED, "#/enum: control characters"),
        ({"pattern": r"a\x01"}, Reason.UNSUPPORTED, "#/pattern: control characters"),
        ({"pattern": r"\u{1b}"}, Reason.UNSUPPORTED, "#/pattern: control characters"),
        ({"patternProperties": {r"\v": True}}, Reason.UNSUPPORTED, "#/patternProperties: control characters"),
        ({"$schema": "https://example.com/mine"}, Reason.UNSUPPORTED, "`$schema`"),
        ({"$ref": 1}, Reason.INVALID, "#/$ref is no text"),
        ({"$ref": "https://example.com/a.json"}, Reason.UNSUPPORTED, "#/$ref leads out of this document"),
        ({"$ref": "other.json#/a"}, Reason.UNSUPPORTED, "#/$ref leads out of this document"),
        ({"$ref": "file:///etc/passwd"}, Reason.UNSUPPORTED, "#/$ref leads out of this document"),
        ({"$ref": "#anchor"}, Reason.UNSUPPORTED, "#/$ref names an anchor"),
        ({"$ref": "#/nowhere"}, Reason.INVALID, "nothing is at #/nowhere"),
        ({"$ref": "#"}, Reason.INVALID, "no finite JSON value"),
        ({"properties": {"a": {"$id": "https://example.com/"}}}, Reason.UNSUPPORTED, "`$id` at #/properties/a"),
        ({"minProperties": 2}, Reason.UNSUPPORTED, "`minProperties` at # is not enforced above"),
        ({"maxProperties": 1, "properties": {str(i): True for i in range(33)}}, Reason.TOO_COMPLEX, "33 optional"),
        ({"properties": {str(i): True for i in range(2001)}}, Reason.TOO_COMPLEX, "2001 names"),
        ({"patternProperties": {f"^{i}$": True for i in range(65)}}, Reason.TOO_COMPLEX, "65 names"),
        (nested(MAX_DEPTH), Reason.TOO_COMPLEX, "levels deep"),
        ({"oneOf": [{"type": "string"}, {"type": ["string", "null"]}]}, Reason.UNSUPPORTED, "alternatives 0 and 1"),
    ],
)  # fmt: skip
def test_refuses_what_is_wrong_or_too_much_with_its_place(schema: Any, reason: Reason, problem: str) -> None:
    refused = refusal_of(schema)

    assert (refused.reason, problem in refused.problem) == (reason, True), refused.problem


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
        {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
        {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}},
        {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}},
        {"a": {"anyOf": [{"$ref": "#/$defs/a"}, False]}},
    ],
)
def test_refuses_what_no_finite_value_fits(definitions: dict[str, Any]) -> None:
    refused = refusal_of({"$ref": "#/$defs/a", "$defs": definitions})

    assert (refused.reason, refused.problem) == (Reason.INVALID, "no finite JSON value fits the schema")


def test_takes_the_endless_part_out_of_what_can_end() -> None:
    endless = {"type": "object", "properties": {"again": {"$ref": "#/$defs/a"}}, "required": ["again"]}
    schema = {"properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$defs": {"a": endless}}

    reduced = enforced_value(schema)

    assert reduced["properties"] == {"x": {"anyOf": [False, {"type": "null"}]}}
    assert "$defs" not in reduced


def test_keeps_what_refers_to_itself_and_can_end() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}

    reduced = enforced_value(tree)

    assert reduced["properties"]["next"] == {"$ref": "#/$defs/r0"}
    assert reduced["$defs"]["r0"]["properties"]["next"] == {"$ref": "#/$defs/r0"}


def test_follows_a_reference_to_any_place_of_the_document() -> None:
    schema = {"$ref": "#/components/schemas/A%20b", "components": {"schemas": {"A b": {"type": "null"}}}}

    assert enforced_value(schema)["$defs"] == {"r0": {"type": "null"}}


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "string"}, {"type": "integer"}],
        [{"const": 1}, {"const": 2}, {"enum": [3, "1"]}],
        [CAT, DOG, {"type": "null"}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        [{"allOf": [{"$ref": "#/$defs/cat"}]}, {"anyOf": [DOG, {"type": "array"}]}],
        [{"type": "object", "properties": {"a": True}, "required": ["a"]}, {"type": "object",
          "additionalProperties": False}],
    ],
)  # fmt: skip
def test_one_of_becomes_any_of_where_alternatives_exclude_each_other(alternatives: list[Any]) -> None:
    reduced = enforced_value({"oneOf": alternatives, "$defs": {"cat": CAT, "dog": DOG}})

    assert len(reduced["anyOf"]) == len(alternatives)
    assert "oneOf" not in reduced


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"const": 1}, {"const": 1.0}],
        [{"const": {"a": [1, {}]}}, {"enum": [0, {"a": [1.0, {}]}]}],
        [{"minimum": 3}, {"maximum": 2}],
        [CAT, {**DOG, "required": []}, CAT],
        [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}],
        [{"properties": {"kind": {"const": 1}}, "required": ["kind"]}, {"properties": {"kind": {"const": 2}},
          "required": ["kind"]}],
    ],
)  # fmt: skip
def test_refuses_one_of_where_a_value_may_fit_twice(alternatives: list[Any]) -> None:
    refused = refusal_of({"properties": {"x": {"oneOf": alternatives}}, "$defs": {"cat": CAT, "dog": DOG}})

    assert refused.reason is Reason.UNSUPPORTED
    assert "`oneOf` at #/properties/x" in refused.problem


def test_a_whole_exclusive_bound_is_moved_inwards() -> None:
    reduced = enforced_value({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1000})

    assert 0 < reduced["exclusiveMinimum"] < 1e-11
    assert 999.9999999 < reduced["exclusiveMaximum"] < 1000


def test_exclusive_bounds_of_draft_4_become_numbers() -> None:
    schema = {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}

    reduced = enforced_value(schema)

    assert {key: reduced[key] for key in reduced if "imum" in key} == {"exclusiveMinimum": 3, "maximum": 9}
