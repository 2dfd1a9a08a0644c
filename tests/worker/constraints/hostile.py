"""Constraints that are meant to hurt, and what each is refused with; None: it is taken, and does no harm."""

import json
from typing import Any, NamedTuple

from worker.constraints.grammar import Kind
from worker.errors import ConstraintInvalid, ConstraintTooComplex, FieldError, UnsupportedOption


class Hostile(NamedTuple):
    """One of them."""

    name: str
    kind: Kind
    text: str
    error: type[FieldError] | None


def all_hostile() -> list[Hostile]:
    """Return all of them."""
    schemas = [Hostile(name, "json_schema", json.dumps(schema), error) for name, schema, error in _schemas()]
    return [*schemas, *_texts()]


def _schemas() -> list[tuple[str, Any, type[FieldError] | None]]:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    text = {"type": "string"}
    names = {f"p{index}": text for index in range(2000)}
    endless = {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}
    return [
        ("150,000 constants", {"enum": list(range(150_000))}, ConstraintTooComplex),
        ("60,000 branches", {"anyOf": [{"type": "array", "maxItems": i} for i in range(60_000)]}, ConstraintTooComplex),
        ("deep", deep, ConstraintTooComplex),
        ("a product of alternatives", {"allOf": [_choice(i, 4) for i in range(12)]}, ConstraintTooComplex),
        ("a tree of references", _doubling(40, joins=False), None),
        ("a tree of intersections", _doubling(24, joins=True), ConstraintTooComplex),
        ("a chain of references", _chain(3000), ConstraintTooComplex),
        ("a circle of references", {"$ref": "#/$defs/a", "$defs": _circle(200)}, ConstraintInvalid),
        ("it refers to itself", {"$ref": "#"}, ConstraintInvalid),
        ("it never ends", endless, ConstraintInvalid),
        ("it intersects itself", _self_intersection(), ConstraintTooComplex),
        ("a remote reference", {"$ref": "https://example.com/schema.json"}, UnsupportedOption),
        ("false", False, ConstraintInvalid),
        ("nothing fits", {"type": "string", "pattern": "^a$", "minLength": 2}, ConstraintInvalid),
        ("a billion items", {"type": "array", "minItems": 10**9, "items": {"type": "object"}}, None),
        ("items of items", _nested_counts(6), None),
        ("a long text", {"type": "string", "minLength": 10**6, "maxLength": 10**9}, None),
        ("a long pattern", {"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"}, None),
        ("doubling states", {"type": "string", "pattern": "(a|b)*a(a|b){30}"}, None),
        ("doubling states, counted", _counted("^(a|b)*a(a|b){20}$"), ConstraintTooComplex),
        ("patterns at once", {"allOf": [{"pattern": f"{c}.*{c}.*{c}"} for c in "abcdefghijkl"]}, ConstraintTooComplex),
        ("backtracking", {"type": "string", "pattern": r"^(a+)+(b*)*((c|cc)*)*$"}, None),
        ("2,000 properties", {"type": "object", "properties": names}, ConstraintTooComplex),
        ("2,000 required properties", {"type": "object", "properties": names, "required": list(names)}, None),
        ("400 properties", {"type": "object", "properties": dict(list(names.items())[:400])}, None),
        ("one of many properties", _counted_properties(32), None),
        ("remainders", {"allOf": [_multiple(number) for number in (9973, 9967, 9949)]}, ConstraintTooComplex),
        ("64 names", {"patternProperties": {f"^{'.?' * i}!{i}$": text for i in range(64)}}, ConstraintTooComplex),
        ("half a character", {"properties": {"\ud800": True}}, ConstraintInvalid),
    ]  # fmt: skip


def _texts() -> list[Hostile]:
    many = " | ".join(f'"choice {index}"' for index in range(14_000))
    return [
        Hostile("no JSON", "json_schema", "{" * 100_000, ConstraintInvalid),
        Hostile("deep JSON", "json_schema", "[" * 500_000, ConstraintTooComplex),
        Hostile("backtracking", "regex", "(a+)+$", None),
        Hostile("stars of stars", "regex", "((((((a*)*)*)*)*)*)*b", None),
        Hostile("repeats of repeats", "regex", "((((a{1,999}){1,999}){1,999}){1,999}){1,999}", None),
        Hostile("doubling states", "regex", "(a|b)*a(a|b){40}", None),
        Hostile("doubling states of any byte", "regex", "(?s:.*)x(?s:.){200}", None),
        Hostile("100,000 forced bytes", "regex", "a{100000}", None),
        Hostile("deep groups", "regex", "(" * 8000 + "a" + ")" * 8000, ConstraintTooComplex),
        Hostile("no group", "regex", "((", ConstraintInvalid),
        Hostile("look-ahead", "regex", "a(?=b)", UnsupportedOption),
        Hostile("a back-reference", "regex", r"(a)\1", UnsupportedOption),
        Hostile("nothing matches", "regex", r"[^\s\S]", ConstraintInvalid),
        Hostile("no lark", "lark", "start: (((", ConstraintInvalid),
        Hostile("no start", "lark", 'begin: "a"', ConstraintInvalid),
        Hostile("a name without a rule", "lark", "start: missing", ConstraintInvalid),
        Hostile("deep lark", "lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000, ConstraintTooComplex),
        Hostile("a chain of rules", "lark", _rules("r"), ConstraintTooComplex),
        Hostile("a chain of terminals", "lark", _rules("R"), ConstraintTooComplex),
        Hostile("nothing fits", "lark", "start: A\nA: /a+/ & /b+/", ConstraintInvalid),
        Hostile("only nothing", "lark", 'start: ""', ConstraintInvalid),
        Hostile("endless", "lark", 'start: "a" start', ConstraintTooComplex),
        Hostile("ambiguous", "lark", 'start: s\ns: s s | "a" | ""', None),
        Hostile("14,000 rules at once", "lark", f"start: {many}", ConstraintTooComplex),
        Hostile("negations", "lark", f"start: A\nA: {_negations('abcdefgh')}", ConstraintTooComplex),
        Hostile("intersections", "lark", f"start: A\nA: {_intersections(300)}", ConstraintTooComplex),
        Hostile("parts of a long text", "lark", _parts(200_000), ConstraintTooComplex),
        Hostile("a schema inside", "lark", 'start: %json {"uniqueItems": true}', UnsupportedOption),
        Hostile("20,000 choices", "choices", json.dumps([f"choice {index:06}" for index in range(20_000)]), None),
    ]


def _negations(letters: str) -> str:
    return " & ".join(f"~/(?s:.*){letter}.{{8}}{letter}/" for letter in letters)


def _intersections(count: int) -> str:
    return " & ".join(f"/(?s:.*)[a-m]{{{index}}}(?s:.*)/" for index in range(1, count))


def _parts(length: int) -> str:
    text = "".join("abcdefgh"[index * index % 8191 % 8] for index in range(length))
    return f'start: A\nA: %regex {{"substring_chars": "{text}"}}'


def _choice(index: int, size: int) -> dict[str, Any]:
    def branch(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}

    return {"anyOf": [branch(f"p{index}_{each}") for each in range(size)]}


def _multiple(number: int) -> dict[str, Any]:
    return {"type": "integer", "multipleOf": number}


def _doubling(levels: int, *, joins: bool) -> dict[str, Any]:
    def level(index: int) -> dict[str, Any]:
        below = {"$ref": f"#/$defs/d{index + 1}"}
        both = {"type": "object", "properties": {"a": below, "b": below}}
        return {"allOf": [below, both]} if joins else both

    definitions = {f"d{index}": level(index) for index in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "object"}}}


def _chain(length: int) -> dict[str, Any]:
    links = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "string"}}}


def _circle(length: int) -> dict[str, Any]:
    links = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(length)}
    return {"a": {"$ref": "#/$defs/d0"}, **links, f"d{length}": {"$ref": "#/$defs/a"}}


def _self_intersection() -> dict[str, Any]:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}
    return {"allOf": [{"$ref": "#/$defs/a"}, {"minimum": 1}], "$defs": {"a": loop}}


def _nested_counts(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "minItems": 1000, "maxItems": 1000}
    return schema


def _counted(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, "minLength": 100, "maxLength": 1000}


def _counted_properties(count: int) -> dict[str, Any]:
    names = {f"p{index}": {"type": "string"} for index in range(count)}
    return {"type": "object", "properties": names, "additionalProperties": False, "minProperties": 1}


def _rules(letter: str) -> str:
    lines = [f'{letter}{index}: {letter}{index + 1} "a"' for index in range(9000)]
    return "\n".join([f"start: {letter}0", *lines, f'{letter}9000: "b"'])
