"""Tools of a request are read within bounds, and so is the choice among them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pomona.v1 import generation_pb2 as pb

from worker.dialects.call import Tool
from worker.errors import InvalidField
from worker.tools import Choice, ToolUse, read_tools

F, G = pb.ToolSpec(name="f", description="does"), pb.ToolSpec(name="g", parameters_json_schema='{"type": "object"}')
NAMED, REQUIRED = pb.ToolChoice.MODE_NAMED, pb.ToolChoice.MODE_REQUIRED


def use(*tools: pb.ToolSpec, **choice: Any) -> ToolUse:
    return read_tools(pb.ChatInput(tools=tools, tool_choice=pb.ToolChoice(**choice)), "chat")


def test_tools_and_the_choice_are_read():
    assert use(F, G) == ToolUse((Tool("f", "does", {}), Tool("g", "", {"type": "object"})), Choice.AUTO, "")
    assert use(F, mode=pb.ToolChoice.MODE_AUTO).choice is Choice.AUTO


@pytest.mark.parametrize(
    ("choice", "offered", "required"),
    [
        ({}, ["f", "g"], []),
        ({"mode": pb.ToolChoice.MODE_NONE}, [], []),
        ({"mode": REQUIRED}, ["f", "g"], ["f", "g"]),
        ({"mode": NAMED, "name": "g"}, ["f", "g"], ["g"]),
    ],
)
def test_the_choice_decides_what_is_offered_and_required(choice: Any, offered: list[str], required: list[str]):
    asked = use(F, G, **choice)
    assert [tool.name for tool in asked.offered] == offered
    assert [tool.name for tool in asked.required] == required


def bad_uses() -> Iterator[tuple[list[pb.ToolSpec], dict[str, Any], str]]:
    for name in ("", "a b", "x" * 65, "é", "a\n", "<f>"):
        yield [F, pb.ToolSpec(name=name)], {}, "tools[1].name"
    yield [F, G, F], {}, "tools[2].name"
    for schema in ("x", "[]", "3", '{"a": NaN}', "[" * 5000, '{"type": "array"}', '"' + "x" * (64 << 10) + '"'):
        yield [pb.ToolSpec(name="f", parameters_json_schema=schema)], {}, "tools[0].parameters_json_schema"
    yield [pb.ToolSpec(name="f", description="x" * ((16 << 10) + 1))], {}, "tools[0].description"
    yield [pb.ToolSpec(name=f"f{index}") for index in range(129)], {}, "tools"
    yield [F], {"mode": NAMED, "name": "g"}, "tool_choice.name"
    yield [F], {"mode": NAMED}, "tool_choice.name"
    yield [F], {"name": "f"}, "tool_choice.name"
    yield [F], {"mode": REQUIRED, "name": "f"}, "tool_choice.name"
    yield [], {"mode": REQUIRED}, "tool_choice.mode"


@pytest.mark.parametrize(("tools", "choice", "field"), list(bad_uses()))
def test_bad_tools_are_refused_by_their_field(tools: list[pb.ToolSpec], choice: dict[str, Any], field: str):
    with pytest.raises(InvalidField) as raised:
        use(*tools, **choice)
    assert raised.value.field == f"chat.{field}"


def test_a_schema_up_to_the_limit_is_taken():
    schema = json.dumps({"description": "x" * 60_000})
    assert use(pb.ToolSpec(name="f", parameters_json_schema=schema)).declared[0].schema == json.loads(schema)
