"""Chats become what a template reads, within bounds."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Value
from pomona.v1 import generation_pb2 as pb

from worker.chat import ChatPrompt, check_variables
from worker.dialects.history import PastCall
from worker.errors import InvalidField, UnsupportedOption

from .specs import generation


def chat_of(**fields: Any) -> ChatPrompt:
    prompt = generation(pb.GenerationSpec(chat=pb.ChatInput(**fields))).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def said(role: Any, text: str = "x") -> pb.ChatMessage:
    return pb.ChatMessage(role=role, text=text)


def test_roles_and_parts_become_what_a_template_reads() -> None:
    parts = [pb.ContentPart(text="a"), pb.ContentPart(text="b")]
    chat = chat_of(
        messages=[
            said(pb.ROLE_SYSTEM),
            pb.ChatMessage(role=pb.ROLE_USER, parts=parts),
            said(pb.ROLE_ASSISTANT),
            pb.ChatMessage(role=pb.ROLE_TOOL, text="x", tool_call_id="c"),
        ]
    )
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool"]
    assert chat.messages[1]["content"] == "ab"


def test_what_the_assistant_did_and_what_its_tools_said_are_read() -> None:
    call = pb.ToolCall(id="c1", name="f", arguments_json='{"b": 1, "a": 2}')
    chat = chat_of(
        messages=[
            pb.ChatMessage(role=pb.ROLE_USER, text="x", name="ann"),
            pb.ChatMessage(role=pb.ROLE_ASSISTANT, reasoning="why", tool_calls=[call]),
            pb.ChatMessage(role=pb.ROLE_TOOL, text="3", tool_call_id="c1"),
        ],
        tools=[pb.ToolSpec(name="f")],
    )
    assert chat.messages == (
        {"role": "user", "content": "x", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "why",
            "reasoning": "why",
            "tool_calls": [PastCall("c1", "f", '{"b": 1, "a": 2}')],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    )
    assert [tool.name for tool in chat.tools.offered] == ["f"]


def test_template_variables_become_json_values() -> None:
    chat = pb.ChatInput(messages=[said(pb.ROLE_USER)], enable_thinking=False)
    chat.template_vars["whole"].number_value = 5
    chat.template_vars["part"].number_value = 0.5
    chat.template_vars["none"].null_value = 0  # pyright: ignore[reportAttributeAccessIssue]
    chat.template_vars["list"].list_value.values.add().bool_value = True
    chat.template_vars["map"].struct_value.fields["key"].string_value = "value"

    prompt = generation(pb.GenerationSpec(chat=chat)).prompt

    assert isinstance(prompt, ChatPrompt)
    assert prompt.variables == {
        "whole": 5,
        "part": 0.5,
        "none": None,
        "list": [True],
        "map": {"key": "value"},
        "enable_thinking": False,
    }
    assert isinstance(prompt.variables["whole"], int)


def bad_chats() -> Iterator[tuple[pb.ChatInput, str]]:
    user = said(pb.ROLE_USER)
    yield pb.ChatInput(messages=[pb.ChatMessage(text="x")]), "messages[0].role"
    yield (
        pb.ChatInput(messages=[user, pb.ChatMessage(role=pb.ROLE_USER, text="x", parts=[pb.ContentPart(text="y")])]),
        "messages[1].text",
    )
    yield pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, parts=[pb.ContentPart()])]), "messages[0].parts[0]"
    yield pb.ChatInput(messages=[user] * 4097), "messages"
    yield (
        pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, parts=[pb.ContentPart(text="y")] * 257)]),
        "messages[0].parts",
    )
    yield pb.ChatInput(messages=[user], continue_final_message=True), "continue_final_message"
    for name in ("not a name", "x" * 65, ""):
        yield with_variable(name, "v"), "template_vars"
    for name in ("messages", "tools", "bos_token"):
        yield with_variable(name, "v"), f'template_vars["{name}"]'
    yield with_variable("enable_thinking", "v", enable_thinking=True), 'template_vars["enable_thinking"]'
    yield pb.ChatInput(messages=[user], template_vars={"empty": Value()}), 'template_vars["empty"]'
    endless = pb.ChatInput(messages=[user])
    endless.template_vars["endless"].number_value = math.inf
    yield endless, 'template_vars["endless"]'
    many = pb.ChatInput(messages=[user])
    for index in range(65):
        many.template_vars[f"v{index}"].bool_value = True
    yield many, "template_vars"


def bad_messages() -> Iterator[tuple[pb.ChatMessage, str]]:
    good: dict[str, Any] = {"id": "c", "name": "f", "arguments_json": "{}"}
    for name, value in [("id", ""), ("id", "x" * 257), ("name", ""), ("name", "x" * 257)]:
        yield assistant({**good, name: value}), f"tool_calls[0].{name}"
    for text in ("", "x", "[]", "null", '{"a": NaN}', "[" * 5000):
        yield assistant({**good, "arguments_json": text}), "tool_calls[0].arguments_json"
    yield assistant(*[good] * 129), "tool_calls"
    yield pb.ChatMessage(role=pb.ROLE_TOOL, text="x"), "tool_call_id"
    yield pb.ChatMessage(role=pb.ROLE_TOOL, text="x", tool_call_id="x" * 257), "tool_call_id"
    yield pb.ChatMessage(role=pb.ROLE_USER, text="x", tool_call_id="c"), "tool_call_id"
    yield pb.ChatMessage(role=pb.ROLE_USER, text="x", reasoning="why"), "reasoning"
    yield pb.ChatMessage(role=pb.ROLE_SYSTEM, text="x", tool_calls=[pb.ToolCall(**good)]), "tool_calls"
    yield pb.ChatMessage(role=pb.ROLE_USER, text="x", name="x" * 65), "name"


def assistant(*calls: dict[str, Any]) -> pb.ChatMessage:
    return pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[pb.ToolCall(**call) for call in calls])


@pytest.mark.parametrize(("message", "path"), list(bad_messages()))
def test_a_bad_message_is_refused_by_its_field(message: pb.ChatMessage, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        chat_of(messages=[said(pb.ROLE_USER), message])
    assert raised.value.field == f"spec.chat.messages[1].{path}"


def with_variable(name: str, value: str, **fields: Any) -> pb.ChatInput:
    chat = pb.ChatInput(messages=[said(pb.ROLE_USER)], **fields)
    chat.template_vars[name].string_value = value
    return chat


@pytest.mark.parametrize(("chat", "path"), list(bad_chats()))
def test_a_bad_chat_is_refused_by_its_field(chat: pb.ChatInput, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(chat=chat))
    assert raised.value.field == f"spec.chat.{path}"


def test_a_role_of_the_future_is_unsupported() -> None:
    message = pb.ChatMessage.FromString(b"\x08\x63")
    with pytest.raises(UnsupportedOption) as raised:
        generation(pb.GenerationSpec(chat=pb.ChatInput(messages=[message])))
    assert raised.value.field == "spec.chat.messages[0].role"


@pytest.mark.parametrize(
    ("variables", "path"),
    [({"enable_thinking": True}, "spec.chat.enable_thinking"), ({"mood": 1}, 'spec.chat.template_vars["mood"]')],
)
def test_a_variable_that_the_template_does_not_read_is_unsupported(variables: dict[str, Any], path: str) -> None:
    chat = ChatPrompt("spec.chat", ({"role": "user", "content": "x"},), variables)
    check_variables(chat, frozenset(variables))
    with pytest.raises(UnsupportedOption) as raised:
        check_variables(chat, frozenset({"other"}))
    assert raised.value.field == path
