"""Whatever a model draws under a schema parses and fits the schema, as the `jsonschema` package sees it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, FormatChecker, validators

from tests.worker.constraints import vocabularies
from tests.worker.constraints.drawing import Drawer, constraint_of
from tests.worker.constraints.random_schemas import SchemaMaker
from worker.constraints import schema, schema_values
from worker.constraints.constraint import GrammarConstraint
from worker.constraints.keywords import SUPPORTED
from worker.errors import ConstraintInvalid
from worker.sequence import TokenNotAllowedError

SEEDS = range(200)
# Formats that the package checks by itself and as their standards have them.
CHECKED_FORMATS = FormatChecker(("ipv4", "ipv6", "uuid", "email"))

# Of each keyword a schema that nothing but it restricts.
KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "type": {"type": ["boolean", "null"]},
    "const": {"const": {"a": [1, 2.5, "x\n", None]}},
    "enum": {"enum": ["a", 1, True, None, [], {"k": "v"}]},
    "$ref": {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "integer", "maximum": 3}}},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "oneOf": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "boolean"}}},
    "properties": {"type": "object", "properties": {"a": {"type": "null"}, "b": False}},
    "required": {"type": "object", "required": ["a", "b"], "properties": {"b": {"type": "integer"}}},
    "additionalProperties": {"type": "object", "properties": {"a": True}, "additionalProperties": {"type": "null"}},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {"type": "null"}}},
    "minProperties": {"type": "object", "minProperties": 1},
    "maxProperties": {"type": "object", "maxProperties": 2},
    "items": {"type": "array", "items": {"type": "integer"}},
    "additionalItems": {"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"},
                        "$schema": "http://json-schema.org/draft-07/schema#"},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}], "minItems": 2},
    "minItems": {"type": "array", "minItems": 3},
    "maxItems": {"type": "array", "maxItems": 2},
    "minLength": {"type": "string", "minLength": 4},
    "maxLength": {"type": "string", "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^[ab]+$"},
    "format": {"type": "string", "format": "ipv4"},
    "minimum": {"type": "number", "minimum": 12.5},
    "maximum": {"type": "integer", "maximum": -3},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 3, "maximum": 4},
    "exclusiveMaximum": {"type": "number", "exclusiveMaximum": 0.5, "minimum": 0},
    "multipleOf": {"type": "integer", "multipleOf": 13},
}  # fmt: skip


def check_outputs(given: Any, seed: int, *, vocabulary: str = "byte_level", num_texts: int = 2) -> None:
    """Draw texts under a schema and check each; the seed is told of one that does not fit."""
    tokens = vocabularies.tokens_of(vocabulary)
    drawer = Drawer(vocabularies.TOKENIZERS[vocabulary](), tokens, np.random.default_rng(seed))
    validator = validators.validator_for(given, Draft202012Validator)
    checked = validator(given, format_checker=CHECKED_FORMATS)
    for index in range(num_texts):
        text = drawer.text(drawer.draw(constraint_of(tokens, "json_schema", json.dumps(given)), skips=index % 2 == 1))
        problem = next((error.message for error in checked.iter_errors(json.loads(text))), None)
        assert problem is None, f"seed {seed}: {text!r} does not fit {given}: {problem}"


def check_all(seeds: range) -> None:
    for seed in seeds:
        check_outputs(SchemaMaker(seed).schema(), seed)


def test_every_supported_keyword_has_a_schema_here() -> None:
    assert set(KEYWORDS) == SUPPORTED


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("vocabulary", ["byte_level", "sentencepiece"])
def test_a_keyword_holds_in_all_that_is_drawn(keyword: str, vocabulary: str) -> None:
    check_outputs(KEYWORDS[keyword], seed=7, vocabulary=vocabulary, num_texts=4)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_drawn_under_a_random_schema_fits_it(seed: int) -> None:
    check_outputs(SchemaMaker(seed).schema(), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_is_drawn_from_a_real_vocabulary_fits(seed: int) -> None:
    check_outputs(SchemaMaker(seed).schema(), seed, vocabulary="smollm2")


def test_a_bound_that_is_not_enforced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.constraints.schema.SUPPORTED", SUPPORTED - {"maximum", "exclusiveMaximum"})

    with pytest.raises(AssertionError, match="does not fit"):
        check_all(SEEDS)


@pytest.mark.parametrize(("escapes", "is_seen"), [('nrbtf\\"u', False), (schema.SPACING["json_allowed_escapes"], True)])
def test_a_name_written_in_numbers_is_not_taken_for_another(
    escapes: str, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `\\u` allowed, `"\\u0061"` is another name than `a` to the grammar and the same one to a reader."""
    monkeypatch.setattr(schema, "SPACING", {**schema.SPACING, "json_allowed_escapes": escapes})
    text = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    constraint = constraint_of(vocabularies.tokens_of("byte_level"), "json_schema", text)

    assert takes(constraint, '{"a": 1, "\\u0061": null}') is not is_seen


def test_a_schema_that_nothing_fits_is_refused_when_it_is_compiled() -> None:
    tokens = vocabularies.tokens_of("byte_level")
    constraint = constraint_of(tokens, "json_schema", '{"type": "string", "pattern": "^a$", "minLength": 2}')

    with pytest.raises(ConstraintInvalid, match="no JSON value fits"):
        constraint.mask()


def takes(constraint: GrammarConstraint, text: str) -> bool:
    """Whether a text is taken to its end."""
    try:
        for token_id in vocabularies.byte_level().encode(text, False):
            constraint.advance(token_id)
    except TokenNotAllowedError:
        return False
    return constraint.is_complete


def test_limits_of_numbers_are_what_floating_point_holds() -> None:
    assert float(schema_values.MAX_NUMBER) == schema_values.MAX_NUMBER
    assert float(schema_values.MAX_NUMBER + 2) != schema_values.MAX_NUMBER + 2
