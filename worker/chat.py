"""Turns a chat of the wire into the plain values that a chat template reads."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.struct_pb2 import Value
from pomona.v1 import generation_pb2 as pb

from worker.dialects.history import PastCall
from worker.errors import InvalidField, UnsupportedOption
from worker.tools import ToolUse, read_object, read_tools

MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_CALLS = 128
MAX_CALL_ID_BYTES = 256
MAX_CALL_NAME_BYTES = 256
MAX_AUTHOR_BYTES = 64
MAX_TEMPLATE_VARS = 64
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Every whole number up to here has its own float64, which is how the wire carries numbers of templates.
MAX_WHOLE_NUMBER = 2**53

ROLES: Mapping[int, str] = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}
THINKING = "enable_thinking"
# Names that the renderer itself fills in; the request has its own fields for most of them.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat to render.

    Attributes:
        path: where it is in the request, for errors.
        messages: role and content of each, and where it has them reasoning_content, name, tool_calls (of `PastCall`)
            and tool_call_id.
        variables: JSON values by the name that the template reads.
        continue_final_message: the model goes on with the last message, which is its own.
        tools: that it may call.
    """

    path: str
    messages: tuple[Mapping[str, Any], ...]
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    continue_final_message: bool = False
    tools: ToolUse = field(default_factory=ToolUse)


def read_chat(chat: pb.ChatInput, path: str) -> ChatPrompt:
    """Check a chat, except for what only the template can tell.

    Args:
        chat: the input; fields that this build does not honour are refused before.
        path: of the input in the request.

    Raises:
        InvalidField: a role is missing, a message has what its role cannot have, a tool or a call is none, or something
            is out of range.
    """
    if not chat.messages:
        raise InvalidField(f"{path}.messages", "give at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidField(f"{path}.messages", f"at most {MAX_MESSAGES} messages")
    messages = tuple(_read_message(each, f"{path}.messages[{index}]") for index, each in enumerate(chat.messages))
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        raise InvalidField(f"{path}.continue_final_message", "the final message is not the assistant's")
    return ChatPrompt(path, messages, _read_variables(chat, path), chat.continue_final_message, read_tools(chat, path))


def check_variables(chat: ChatPrompt, known: frozenset[str]) -> None:
    """Refuse variables that the model's template does not read.

    Args:
        chat: a checked chat.
        known: the names that the template reads.

    Raises:
        UnsupportedOption: it names the variable's field.
    """
    for name in chat.variables:
        if name not in known:
            option = name if name == THINKING else variable_path(name)
            raise UnsupportedOption(f"{chat.path}.{option}", "the model's chat template does not read it")


def variable_path(name: str) -> str:
    """Return the path of a template variable below its chat."""
    return f"template_vars[{json.dumps(name)}]"


def _read_message(message: pb.ChatMessage, path: str) -> Mapping[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidField(f"{path}.role", "give a role")
    if message.text and message.parts:
        raise InvalidField(f"{path}.text", "give text or parts, not both")
    if len(message.parts) > MAX_PARTS:
        raise InvalidField(f"{path}.parts", f"at most {MAX_PARTS} parts")
    for index, part in enumerate(message.parts):
        if part.WhichOneof("part") is None:
            raise InvalidField(f"{path}.parts[{index}]", "the part is empty")
    _check_role(message, path)
    content = message.text or "".join(part.text for part in message.parts)
    calls = _read_calls(message, f"{path}.tool_calls")
    more = {
        # Templates know it by either name.
        "reasoning_content": message.reasoning,
        "reasoning": message.reasoning,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return {"role": role, "content": content, **{key: value for key, value in more.items() if value}}


def _check_role(message: pb.ChatMessage, path: str) -> None:
    """Refuse what the author of a message does not write."""
    if message.role != pb.ROLE_ASSISTANT:
        for name in ("reasoning", "tool_calls"):
            if getattr(message, name):
                raise InvalidField(f"{path}.{name}", "only the assistant's messages have it")
    if bool(message.tool_call_id) != (message.role == pb.ROLE_TOOL):
        raise InvalidField(f"{path}.tool_call_id", "the messages of tools have it, and no others")
    if len(message.tool_call_id.encode()) > MAX_CALL_ID_BYTES:
        raise InvalidField(f"{path}.tool_call_id", f"at most {MAX_CALL_ID_BYTES} bytes")
    if len(message.name.encode()) > MAX_AUTHOR_BYTES:
        raise InvalidField(f"{path}.name", f"at most {MAX_AUTHOR_BYTES} bytes")


def _read_calls(message: pb.ChatMessage, path: str) -> list[PastCall]:
    if len(message.tool_calls) > MAX_CALLS:
        raise InvalidField(path, f"at most {MAX_CALLS} calls")
    return [_read_call(call, f"{path}[{index}]") for index, call in enumerate(message.tool_calls)]


def _read_call(call: pb.ToolCall, path: str) -> PastCall:
    if not 1 <= len(call.id.encode()) <= MAX_CALL_ID_BYTES:
        raise InvalidField(f"{path}.id", f"1 to {MAX_CALL_ID_BYTES} bytes")
    # A model may have called what no tool can be named.
    if not 1 <= len(call.name.encode()) <= MAX_CALL_NAME_BYTES:
        raise InvalidField(f"{path}.name", f"1 to {MAX_CALL_NAME_BYTES} bytes")
    read_object(call.arguments_json, f"{path}.arguments_json")
    return PastCall(call.id, call.name, call.arguments_json)


def _read_variables(chat: pb.ChatInput, path: str) -> Mapping[str, Any]:
    if len(chat.template_vars) > MAX_TEMPLATE_VARS:
        raise InvalidField(f"{path}.template_vars", f"at most {MAX_TEMPLATE_VARS} variables")
    variables: dict[str, Any] = {}
    for name, value in chat.template_vars.items():
        if VARIABLE_NAME.fullmatch(name) is None:
            raise InvalidField(f"{path}.template_vars", "a name is no identifier of at most 64 letters")
        where = f"{path}.{variable_path(name)}"
        if name in RESERVED or (name == THINKING and chat.HasField(THINKING)):
            raise InvalidField(where, "the request sets it elsewhere")
        variables[name] = _plain(value, where)
    if chat.HasField(THINKING):
        variables[THINKING] = chat.enable_thinking
    return variables


def _plain(value: Value, path: str) -> Any:
    """Turn a protobuf value, which is at most 100 levels deep, into a JSON value."""
    match value.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return value.bool_value
        case "string_value":
            return value.string_value
        case "number_value":
            return _plain_number(value.number_value, path)
        case "list_value":
            return [_plain(each, path) for each in value.list_value.values]
        case "struct_value":
            return {key: _plain(each, path) for key, each in value.struct_value.fields.items()}
        case _:
            raise InvalidField(path, "the value is empty")


def _plain_number(number: float, path: str) -> int | float:
    if not math.isfinite(number):
        raise InvalidField(path, "not a finite number")
    return int(number) if number.is_integer() and abs(number) <= MAX_WHOLE_NUMBER else number
