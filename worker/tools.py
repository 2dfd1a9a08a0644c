"""Reads the tools that a request offers the model, and which of them it may or must call."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pomona.v1 import generation_pb2 as pb

from worker.dialects.call import Tool
from worker.dialects.history import arguments_of
from worker.errors import InvalidField

MAX_TOOLS = 128
MAX_DESCRIPTION_BYTES = 16 << 10
MAX_SCHEMA_BYTES = 64 << 10
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Choice(Enum):
    """What the model may do with its tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


_CHOICES = {
    pb.ToolChoice.MODE_UNSPECIFIED: Choice.AUTO,
    pb.ToolChoice.MODE_AUTO: Choice.AUTO,
    pb.ToolChoice.MODE_NONE: Choice.NONE,
    pb.ToolChoice.MODE_REQUIRED: Choice.REQUIRED,
    pb.ToolChoice.MODE_NAMED: Choice.NAMED,
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request.

    Attributes:
        declared: all of them.
        choice: what the model may do with them.
        name: of the one that it must call, with `NAMED`.
    """

    declared: tuple[Tool, ...] = ()
    choice: Choice = Choice.AUTO
    name: str = ""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Those that the model is told of."""
        return () if self.choice is Choice.NONE else self.declared

    @property
    def required(self) -> tuple[Tool, ...]:
        """Those of which it must call one at least; none where it need not."""
        if self.choice is Choice.NAMED:
            return tuple(tool for tool in self.declared if tool.name == self.name)
        return self.declared if self.choice is Choice.REQUIRED else ()


def read_tools(chat: pb.ChatInput, path: str) -> ToolUse:
    """Check the tools of a chat and the choice among them.

    Args:
        chat: the input.
        path: of the input in the request.

    Raises:
        InvalidField: a tool has no proper name or schema, two have one name, or the choice fits none of them.
    """
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidField(f"{path}.tools", f"at most {MAX_TOOLS} tools")
    tools = tuple(_read_tool(tool, f"{path}.tools[{index}]") for index, tool in enumerate(chat.tools))
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidField(f"{path}.tools[{index}].name", "another tool has this name")
        names.add(tool.name)
    choice = _CHOICES[chat.tool_choice.mode]
    _check_choice(chat.tool_choice, choice, names, f"{path}.tool_choice")
    return ToolUse(tools, choice, chat.tool_choice.name)


def read_object(text: str, path: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InvalidField: it is none.
    """
    try:
        return arguments_of(text)
    except ValueError:
        raise InvalidField(path, "not a JSON object") from None


def _read_tool(tool: pb.ToolSpec, path: str) -> Tool:
    if NAME.fullmatch(tool.name) is None:
        raise InvalidField(f"{path}.name", "1 to 64 letters, digits, '_', '-' and '.'")
    if len(tool.description.encode()) > MAX_DESCRIPTION_BYTES:
        raise InvalidField(f"{path}.description", f"at most {MAX_DESCRIPTION_BYTES} bytes")
    where = f"{path}.parameters_json_schema"
    if len(tool.parameters_json_schema.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidField(where, f"at most {MAX_SCHEMA_BYTES} bytes")
    schema = read_object(tool.parameters_json_schema, where) if tool.parameters_json_schema else {}
    if schema and schema.get("type", "object") != "object":
        raise InvalidField(where, "the arguments of a tool are an object")
    return Tool(tool.name, tool.description, schema)


def _check_choice(message: pb.ToolChoice, choice: Choice, names: set[str], path: str) -> None:
    if choice is not Choice.NAMED and message.name:
        raise InvalidField(f"{path}.name", "only MODE_NAMED has a name")
    if choice is Choice.NAMED and not message.name:
        raise InvalidField(f"{path}.name", "MODE_NAMED needs a name")
    if choice is Choice.NAMED and message.name not in names:
        raise InvalidField(f"{path}.name", "no tool of the request has this name")
    if choice is Choice.REQUIRED and not names:
        raise InvalidField(f"{path}.mode", "there are no tools")
