"""A client's constraint as it came, checked for its size; what it says is checked where it is compiled."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pomona.v1 import generation_pb2 as pb

from worker.errors import ConstraintInvalid, ConstraintTooComplex

Kind = Literal["json_schema", "json_object", "regex", "lark", "choices"]

MAX_SCHEMA_BYTES = 1 << 20
MAX_REGEX_BYTES = 16 << 10
MAX_LARK_BYTES = 256 << 10
MAX_CHOICES_BYTES = 1 << 20
MAX_CHOICES = 20_000


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint of a bounded size.

    Attributes:
        kind: how `text` is to be read.
        text: a JSON Schema, a regular expression, a lark grammar, or a JSON array of choices; of `json_object` nothing.
        path: where the constraint is in its request, for errors.
    """

    kind: Kind
    text: str
    path: str


def read_constraint(message: pb.Constraint, path: str) -> Grammar | None:
    """Read the constraint of a request; None where nothing is set in it.

    Only sizes are checked here, in no time; `GrammarCompiler.compile` finds all else.

    Args:
        message: of the request.
        path: where it is in the request.

    Raises:
        ConstraintInvalid: it is empty.
        ConstraintTooComplex: it is too large.
    """
    match message.WhichOneof("kind"):
        case "json_schema":
            return _text("json_schema", message.json_schema, f"{path}.json_schema", MAX_SCHEMA_BYTES)
        case "json_object":
            return Grammar("json_object", "", f"{path}.json_object")
        case "regex":
            return _text("regex", message.regex, f"{path}.regex", MAX_REGEX_BYTES)
        case "lark_grammar":
            return _text("lark", message.lark_grammar, f"{path}.lark_grammar", MAX_LARK_BYTES)
        case "choices":
            return _choices(message.choices.choices, f"{path}.choices.choices")
        case _:
            return None


def _text(kind: Kind, text: str, path: str, max_bytes: int) -> Grammar:
    size = len(text.encode())
    if size > max_bytes:
        raise ConstraintTooComplex(path, f"{size} bytes; at most {max_bytes}")
    if not text:
        raise ConstraintInvalid(path, "it is empty")
    return Grammar(kind, text, path)


def _choices(choices: Sequence[str], path: str) -> Grammar:
    if len(choices) > MAX_CHOICES:
        raise ConstraintTooComplex(path, f"{len(choices)} strings; at most {MAX_CHOICES}")
    size = sum(len(choice.encode()) for choice in choices)
    if size > MAX_CHOICES_BYTES:
        raise ConstraintTooComplex(path, f"{size} bytes; at most {MAX_CHOICES_BYTES}")
    if not choices:
        raise ConstraintInvalid(path, "no strings to choose from")
    empty = next((index for index, choice in enumerate(choices) if not choice), None)
    if empty is not None:
        raise ConstraintInvalid(f"{path}[{empty}]", "the string is empty")
    return Grammar("choices", json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False), path)
