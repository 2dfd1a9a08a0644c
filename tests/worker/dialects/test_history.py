"""Tools, calls and results reach a template as it reads them, and what it writes of calls is read as the same calls."""

import json
from typing import Any

import pytest

from models.checkpoint.chat_template import ChatTemplate
from worker.dialects.call import ToolCall
from worker.dialects.choosing import dialect_named
from worker.dialects.history import HistoryForm, PastCall, arguments_of, history_form, shaped, template_tool

from .templates import JOINING, TEMPLATES
from .transcripts import TOOLS, parsed

ARGUMENTS = '{"query":"<a & \\"b\\">\\n","limit":3,"exact":true,"tags":["x","y"],"range":{"from":1.5,"to":2}}'
CALLS = [PastCall("call-1", "search", ARGUMENTS), PastCall("call-2", "now", "{}")]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "find it"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "content": "42", "tool_call_id": "call-1"},
    {"role": "tool", "content": "noon", "tool_call_id": "call-2", "name": "clock"},
]


def rendered(template: str, messages: list[dict[str, Any]]) -> str:
    tools = [template_tool(tool.name, tool.description, tool.schema) for tool in TOOLS.values()]
    shape = shaped(messages, history_form(template))
    return ChatTemplate(template, None, None).render(
        shape, {"tools": tools}, add_generation_prompt=False, continue_final_message=False
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_writes_of_calls_is_read_as_the_same_calls(name: str) -> None:
    before, after = rendered(TEMPLATES[name], MESSAGES[:1]), rendered(TEMPLATES[name], MESSAGES[:2])
    assert after.startswith(before)
    parser = dialect_named(name).parser(TOOLS)
    calls = [piece for piece in parsed(parser, [after[len(before) :]]) if isinstance(piece, ToolCall)]
    assert [(call.name, json.loads(call.arguments_json)) for call in calls] == [
        (call.name, json.loads(call.arguments_json)) for call in CALLS
    ]
    assert (parser.num_malformed, parser.num_mismatched) == (0, 0)


def test_results_name_the_tool_of_the_call_that_they_answer() -> None:
    names = [message.get("name") for message in shaped(MESSAGES, HistoryForm())]
    assert names == [None, None, "search", "clock"]
    assert "<tool_response>search: 42</tool_response>" in rendered(TEMPLATES["hermes"], MESSAGES)


def test_a_result_of_no_known_call_stays_as_it_is() -> None:
    message = {"role": "tool", "content": "x", "tool_call_id": "other"}
    assert shaped([message], HistoryForm()) == [message]


def test_ids_fit_a_template_that_wants_nine_letters_and_stay_together() -> None:
    calls = [PastCall("aB3456789", "now", "{}"), *CALLS]
    results = [{"role": "tool", "content": "x", "tool_call_id": call.id} for call in calls]
    messages = shaped(
        [{"role": "assistant", "content": "", "tool_calls": calls}, *results], HistoryForm(ids_are_short=True)
    )
    ids = [entry["id"] for entry in messages[0]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[1:]]
    assert ids[0] == "aB3456789"
    assert len(set(ids)) == 3
    assert all(len(each) == 9 and each.isalnum() for each in ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_read_objects_get_them(name: str) -> None:
    assert history_form(TEMPLATES[name]) == HistoryForm(ids_are_short=name == "mistral_array")


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<x>' + tool['function']['arguments'] + '</x>' }}",
        "{{- tool_call.function.arguments }}",
        "{{ name ~ call.arguments ~ '}' }}",
        JOINING,
    ],
)
def test_templates_that_join_arguments_to_text_get_text(source: str) -> None:
    assert history_form(source).arguments_are_text


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{' + call.arguments | tojson + '}' }}",
        "{% if f['arguments'] is mapping %}…{% else %}{{- f['arguments'] -}}{% endif %}",
        "{% set args = call.arguments %}{{ args | tojson }}",
        "{% for k in call.arguments %}{{ call.arguments[k] }}{% endfor %}",
        "{{ messages[0].content }}",
    ],
)
def test_templates_that_can_read_objects_get_objects(source: str) -> None:
    assert not history_form(source).arguments_are_text


def test_joined_arguments_are_the_text_that_was_sent() -> None:
    assert f"<call>search\n{ARGUMENTS}</call>" in rendered(JOINING, MESSAGES)


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{", '{"a": NaN}', '{"a":' * 100_000])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|nested|Expecting"):
        arguments_of(text)


def test_a_tool_has_a_schema_of_arguments_in_any_case() -> None:
    assert template_tool("now", "Says it.", {}) == {
        "type": "function",
        "function": {"name": "now", "description": "Says it.", "parameters": {"type": "object", "properties": {}}},
    }
