"""Sixteen constraints of all kinds, each with a question, and a judge of what a model says under them."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from pomona.v1 import generation_pb2 as pb

TEXT: dict[str, Any] = {"type": "string", "maxLength": 24}
COLOURS = ["red", "green", "blue"]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REVIEW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stars": {"enum": [1, 2, 3, 4, 5]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
        "again": {"type": ["boolean", "null"]},
    },
    "required": ["stars", "words"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer", "minimum": -9, "maximum": 9}, "next": {"$ref": "#"}},
    "required": ["v"],
    "additionalProperties": False,
}
SHAPE: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0, "maximum": 9}},
            "required": ["kind", "r"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["kind", "side"],
            "additionalProperties": False,
        },
    ]
}
SUM = 'start: term (("+" | "-") term){0,3}\nterm: NUMBER | "(" NUMBER ("*" | "/") NUMBER ")"\nNUMBER: /[0-9]{1,3}/'
TERM = r"(\d{1,3}|\(\d{1,3}[*/]\d{1,3}\))"
COUPLET = 'start: line line\nline: /[A-Z][a-z]{1,9}( [a-z]{1,9}){2,5}/ (","|".") "\\n"'


@dataclass(frozen=True, slots=True)
class Case:
    """One of them.

    Attributes:
        name: for people.
        question: what the model is asked.
        constraint: as a request has it.
        fits: judges a whole output.
        is_open_ended: what fits may be of any length, so the model has to be drawn to an end.
    """

    name: str
    question: str
    constraint: pb.Constraint
    fits: Callable[[str], bool]
    is_open_ended: bool = False


def sixteen() -> list[Case]:
    """Return them."""
    return [
        _schema("a person", "Who are you?", PERSON),
        _schema("a review", "How was the film?", REVIEW),
        _schema("a list that may nest", "Give me a linked list.", TREE, is_open_ended=True),
        _schema("one of two shapes", "Draw something.", SHAPE, is_open_ended=True),  # a number has any digits
        _schema("a date", "When was that?", {"type": "string", "format": "date"}),
        _schema("numbers", "Three primes, please.", _list({"type": "integer", "minimum": 2, "maximum": 99}, 3)),
        _schema("names", "Who came?", _list({"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"}, 4)),
        Case("any object", "Say it in JSON.", pb.Constraint(json_object=pb.JsonObject()), _is_object, True),
        _regex("a telephone number", "What is your number?", r"\+[1-9][0-9]{1,2} [0-9]{3} [0-9]{4,6}"),
        _regex("an address", "Your address?", r"[a-z]{2,9}(\.[a-z]{2,9})?@[a-z]{2,9}\.(com|org|net)"),
        _regex("words in capitals", "Shout!", r"[A-Z]{2,9}( [A-Z]{2,9}){1,4}!"),
        _regex("words of several alphabets", "Greet me.", "(hello|привет|你好|👋)( [a-zà-ÿ]{2,9}){1,5}"),
        _choices("a colour", "Which colour is the sky?", COLOURS),
        _choices("one of many", "Take a card.", [f"the {rank} of {suit}" for rank in range(200) for suit in COLOURS]),
        _lark("a sum", "What is to be computed?", SUM, f"{TERM}([+-]{TERM}){{0,3}}"),
        _lark("two lines", "A poem!", COUPLET, r"([A-Z][a-z]{1,9}( [a-z]{1,9}){2,5}[,.]\n){2}"),
    ]  # fmt: skip


def _list(item: dict[str, Any], count: int) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": count, "maxItems": count}


def _schema(name: str, question: str, schema: dict[str, Any], *, is_open_ended: bool = False) -> Case:
    validator = Draft202012Validator(schema)

    def fits(text: str) -> bool:
        try:
            return validator.is_valid(json.loads(text))
        except ValueError:
            return False

    return Case(name, question, pb.Constraint(json_schema=json.dumps(schema)), fits, is_open_ended)


def _regex(name: str, question: str, pattern: str) -> Case:
    return Case(name, question, pb.Constraint(regex=pattern), _fullmatch(pattern))


def _choices(name: str, question: str, choices: list[str]) -> Case:
    return Case(name, question, pb.Constraint(choices=pb.StringChoices(choices=choices)), choices.__contains__)


def _lark(name: str, question: str, grammar: str, pattern: str) -> Case:
    return Case(name, question, pb.Constraint(lark_grammar=grammar), _fullmatch(pattern))


def _fullmatch(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
