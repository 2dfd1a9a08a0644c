"""A constraint as it comes in a request: read, or refused for its size at once."""

import json
import time

import pytest
from pomona.v1 import generation_pb2 as pb

from worker.constraints.grammar import MAX_CHOICES, MAX_LARK_BYTES, MAX_REGEX_BYTES, Grammar, read_constraint
from worker.errors import ConstraintInvalid, ConstraintTooComplex

PATH = "spec.constraint"


@pytest.mark.parametrize(
    ("message", "grammar"),
    [
        (pb.Constraint(json_schema="{}"), Grammar("json_schema", "{}", f"{PATH}.json_schema")),
        (pb.Constraint(json_object=pb.JsonObject()), Grammar("json_object", "", f"{PATH}.json_object")),
        (pb.Constraint(regex=" "), Grammar("regex", " ", f"{PATH}.regex")),
        (pb.Constraint(lark_grammar="start: A"), Grammar("lark", "start: A", f"{PATH}.lark_grammar")),
        (pb.Constraint(), None),
    ],
)
def test_reads_each_kind(message: pb.Constraint, grammar: Grammar | None) -> None:
    assert read_constraint(message, PATH) == grammar


def test_choices_are_kept_in_order_and_once() -> None:
    grammar = read_constraint(pb.Constraint(choices=pb.StringChoices(choices=["é", "b", "é"])), PATH)

    assert grammar is not None
    assert json.loads(grammar.text) == ["é", "b"]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (pb.Constraint(json_schema=""), f"{PATH}.json_schema"),
        (pb.Constraint(regex=""), f"{PATH}.regex"),
        (pb.Constraint(lark_grammar=""), f"{PATH}.lark_grammar"),
        (pb.Constraint(choices=pb.StringChoices()), f"{PATH}.choices.choices"),
        (pb.Constraint(choices=pb.StringChoices(choices=["a", ""])), f"{PATH}.choices.choices[1]"),
    ],
)
def test_refuses_what_is_empty(message: pb.Constraint, path: str) -> None:
    with pytest.raises(ConstraintInvalid) as caught:
        read_constraint(message, PATH)

    assert caught.value.field == path


@pytest.mark.parametrize(
    "message",
    [
        pb.Constraint(json_schema='{"const": "' + "x" * (5 << 20) + '"}'),
        pb.Constraint(regex="a" * (MAX_REGEX_BYTES + 1)),
        pb.Constraint(lark_grammar="a" * (MAX_LARK_BYTES + 1)),
        pb.Constraint(choices=pb.StringChoices(choices=[str(i) for i in range(100_000)])),
        pb.Constraint(choices=pb.StringChoices(choices=["é" * 1000 + str(i) for i in range(MAX_CHOICES // 10)])),
    ],
    ids=["5 MB schema", "regex", "lark", "100,000 choices", "4 MB of choices"],
)
def test_refuses_what_is_too_large_at_once(message: pb.Constraint) -> None:
    began = time.perf_counter()

    with pytest.raises(ConstraintTooComplex):
        read_constraint(message, PATH)

    assert time.perf_counter() - began < 0.2
