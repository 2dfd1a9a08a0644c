"""Turns a chat of the wire into the plain values that a chat template reads."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.struct_pb2 import Value
from pomona.v1 import generation_pb2 as pb

from worker.errors import InvalidField, UnsupportedOption

MAX_MESSAGES = 4096
MAX_PARTS = 256
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
        messages: role and content of each.
        variables: JSON values by the name that the template reads.
        continue_final_message: the model goes on with the last message, which is its own.
    """

    path: str
    messages: tuple[Mapping[str, str], ...]
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    continue_final_message: bool = False


def read_chat(chat: pb.ChatInput, path: str) -> ChatPrompt:
    """Check a chat, except for what only the template can tell.

    Args:
        chat: the input; fields that this build does not honour are refused before.
        path: of the input in the request.

    Raises:
        InvalidField: a role is missing, a message has both text and parts, or something is out of range.
    """
    if not chat.messages:
        raise InvalidField(f"{path}.messages", "give at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidField(f"{path}.messages", f"at most {MAX_MESSAGES} messages")
    messages = tuple(_read_message(each, f"{path}.messages[{index}]") for index, each in enumerate(chat.messages))
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        raise InvalidField(f"{path}.continue_final_message", "the final message is not the assistant's")
    return ChatPrompt(path, messages, _read_variables(chat, path), chat.continue_final_message)


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


def _read_message(message: pb.ChatMessage, path: str) -> Mapping[str, str]:
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
    return {"role": role, "content": message.text or "".join(part.text for part in message.parts)}


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
