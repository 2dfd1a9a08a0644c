"""Tools that a model may call: read from a file, checked, and written into a request."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pomona.v1 import generation_pb2

from gateway.cli.failures import UsageError
from gateway.cli.fields import is_text, read_json

_PANEL = "Tools"
_KEYS = ("name", "description", "parameters")
_MODES = {
    "auto": generation_pb2.ToolChoice.MODE_AUTO,
    "none": generation_pb2.ToolChoice.MODE_NONE,
    "required": generation_pb2.ToolChoice.MODE_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Which tools there are, and whether the model must call one."""

    tools: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='A JSON array of tools, each {"name", "description", "parameters"} or OpenAI\'s {"type": "function", '
            '"function": {...}}.',
            rich_help_panel=_PANEL,
        ),
    ] = None
    tool_choice: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|required|NAME",
            help="Whether it may, must not or must call one, or which it must call. In a conversation it holds for the "
            "first answer to a question: behind a tool's result the model may answer.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: the file cannot be used, or no tool has the chosen name.
        """
        if self.tools is None:
            if self.tool_choice is not None:
                raise UsageError("--tool-choice needs --tools FILE")
            return
        spec.chat.tools.extend(read_tools(self.tools))
        if self.tool_choice is not None:
            spec.chat.tool_choice.CopyFrom(_choice(self.tool_choice, [tool.name for tool in spec.chat.tools]))


def read_tools(path: Path) -> list[generation_pb2.ToolSpec]:
    """Return the tools in a file.

    Raises:
        UsageError: it is no JSON array of tools; the text names the place in it.
    """
    _, document = read_json("--tools", path)
    try:
        return _tools(document)
    except _Misplaced as error:
        raise UsageError(f"--tools: {path}: {error}") from None


class _Misplaced(Exception):
    """Raised when something in the file is not what it must be; the text begins with its place."""


def _tools(document: Any) -> list[generation_pb2.ToolSpec]:
    if not isinstance(document, list):
        raise _Misplaced("is not a JSON array")
    if not document:
        raise _Misplaced("holds no tool")
    seen: dict[str, str] = {}
    tools: list[generation_pb2.ToolSpec] = []
    for index, entry in enumerate(cast("list[Any]", document)):
        place, fields = _fields(f"[{index}]", entry)
        tool = _tool(place, fields)
        if tool.name in seen:
            raise _Misplaced(f"{place}.name: {tool.name!r} is the name of {seen[tool.name]} too")
        seen[tool.name] = place
        tools.append(tool)
    return tools


def _fields(place: str, entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the place and the fields of a tool, out of OpenAI's wrapping where it is wrapped."""
    fields = _mapping(place, entry)
    if "function" not in fields:
        if "type" in fields:
            raise _Misplaced(f'{place}.type has no "function" beside it')
        return place, fields
    _check_keys(place, fields, ("type", "function"))
    if fields.get("type", "function") != "function":
        raise _Misplaced(f'{place}.type is not "function"')
    return f"{place}.function", _mapping(f"{place}.function", fields["function"])


def _tool(place: str, fields: Mapping[str, Any]) -> generation_pb2.ToolSpec:
    _check_keys(place, fields, _KEYS)
    for name in ("name", "description"):
        value = fields.get(name, "")
        if not (isinstance(value, str) and is_text(value)):
            raise _Misplaced(f"{place}.{name} is not a string of Unicode characters")
    if not fields.get("name"):
        raise _Misplaced(f"{place} has no name")
    schema = ""
    if fields.get("parameters") is not None:
        parameters = _mapping(f"{place}.parameters", fields["parameters"])
        schema = json.dumps(parameters, separators=(",", ":"))
    return generation_pb2.ToolSpec(
        name=fields["name"], description=fields.get("description", ""), parameters_json_schema=schema
    )


def _mapping(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Misplaced(f"{place} is not a JSON object")
    return cast("dict[str, Any]", value)


def _check_keys(place: str, fields: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in fields:
        if name not in known:
            raise _Misplaced(f"{place}.{name} is not known; there are: {', '.join(known)}")


def _choice(text: str, names: list[str]) -> generation_pb2.ToolChoice:
    if text in _MODES:
        return generation_pb2.ToolChoice(mode=_MODES[text])
    if text not in names:
        raise UsageError(f"--tool-choice: no tool is named {text!r}; there are: {', '.join(names)}")
    return generation_pb2.ToolChoice(mode=generation_pb2.ToolChoice.MODE_NAMED, name=text)
