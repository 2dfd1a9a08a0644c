"""What a grammar lets a model write is read as calls that fit the schema, and nothing else."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from worker.dialects.call import Tool, ToolCall
from worker.dialects.choosing import DIALECTS, dialect_named
from worker.dialects.dialect import Dialect

from .generating import Generator
from .transcripts import parsed

ADDRESS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "minLength": 1, "maxLength": 12},
        "floor": {"type": ["integer", "null"]},
    },
    "required": ["street"],
    "additionalProperties": False,
}
SHIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "minimum": 1, "maximum": 20},
        "weight": {"type": "number"},
        "fast": {"type": "boolean"},
        "speed": {"enum": ["slow", 'slower "than" slow', "fast"]},
        "to": {"$ref": "#/$defs/address"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/address"}, "minItems": 1, "maxItems": 3},
        "coupon": {"anyOf": [{"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, {"type": "null"}]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["to", "count", "note"],
    "additionalProperties": False,
    "$defs": {"address": ADDRESS},
}
OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"const": "x"}, "c": {"type": "null"}},
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "parts": {"$ref": "#/$defs/parts"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {
        "parts": {"type": "array", "maxItems": 2, "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/parts"}]}}
    },
}
TOOLS = {
    "ship": Tool("ship", "Sends it.", SHIP),
    "set-it": Tool("set-it", "Sets it.", OPTIONAL),
    "now": Tool("now", "", {"type": "object", "properties": {}, "additionalProperties": False}),
    "grow": Tool("grow", "", TREE),
}
ROUNDS = 25


def check(name: str, grammar: str, marks: Sequence[str], expected: set[str]) -> None:
    """Have texts written under a grammar and read, and compare each call with its tool's schema."""
    generator, called = Generator(marks), set[str]()
    for seed in range(ROUNDS):
        text = generator.write(grammar, random.Random(seed))
        for piece in parsed(dialect_named(name).parser(TOOLS), [text]) if text is not None else ():
            assert isinstance(piece, ToolCall), f"seed {seed}: {text!r}"
            validator = jsonschema.Draft202012Validator(TOOLS[piece.name].schema)
            assert validator.is_valid(json.loads(piece.arguments_json)), f"seed {seed}: {text!r}"
            called.add(piece.name)
    assert called == expected, f"seeds to {ROUNDS}"


@pytest.mark.parametrize("are_special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_is_generated_is_read_as_calls_that_fit(dialect: Dialect, are_special: bool) -> None:
    marks = dialect.marks if are_special else ()
    grammar = dialect.grammar(list(TOOLS.values()), Generator.special(marks))
    check(dialect.name, grammar, marks, set(TOOLS))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_named_tool_is_the_only_one(dialect: Dialect) -> None:
    generator = Generator(())
    grammar = dialect.grammar([TOOLS["set-it"]], {})
    for seed in range(ROUNDS):
        text = generator.write(grammar, random.Random(seed))
        assert text is not None
        assert {getattr(piece, "name", piece) for piece in parsed(dialect.parser(TOOLS), [text])} == {"set-it"}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_tool_without_a_schema_can_be_called(dialect: Dialect) -> None:
    grammar = dialect.grammar([Tool("anything", "", {})], {})
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar)) == ""
    text = Generator(()).write(grammar, random.Random(1))
    assert text is not None
    assert all(isinstance(piece, ToolCall) for piece in parsed(dialect.parser({}), [text])) == (
        not dialect.name.startswith("llama3")  # without marks only declared tools are called
    )


def test_a_grammar_that_lets_too_much_through_is_seen() -> None:
    loose = {**SHIP, "properties": {**SHIP["properties"], "count": {"type": "number"}}}
    grammar = dialect_named("qwen3_coder").grammar([Tool("ship", "", loose)], {})
    with pytest.raises(AssertionError, match="seed"):
        check("qwen3_coder", grammar, (), {"ship"})
