"""What a model can do beside plain text follows from its template and its settings, and what it cannot is refused."""

from typing import Any

import pytest

from worker.abilities import NO_DIALECT, NO_MARKS, NO_TEMPLATE, NO_TOOLS, Abilities, abilities_of, check_chat
from worker.chat import ChatPrompt
from worker.dialects.call import Tool
from worker.dialects.choosing import UnknownDialectError, dialect_named
from worker.errors import UnsupportedOption
from worker.reasoning import MarksError, ReasoningMarks
from worker.tools import Choice, ToolUse

QWEN3 = "{% for tool in tools %}<tool_call>{% endfor %}{{ message.tool_calls }}{{ '<think>' }}</think>"
ABLE = abilities_of(QWEN3)


def test_a_template_says_what_its_model_can_do():
    assert ABLE.marks == ReasoningMarks("<think>", "</think>")
    assert ABLE.dialect is dialect_named("hermes")
    assert ABLE.unavailable == {}


@pytest.mark.parametrize(
    ("template", "reasoning", "tool_calls"),
    [
        (None, NO_TEMPLATE, NO_TEMPLATE),
        ("{{ messages }}", NO_MARKS, NO_DIALECT),
        ("{# tools #}{{ message.tool_calls }}<tool_call>", NO_MARKS, NO_TOOLS),
        ("{# </think> #}{{ tools }}", NO_MARKS, NO_DIALECT),
    ],
)
def test_what_is_missing_has_a_reason(template: str | None, reasoning: str, tool_calls: str):
    found = abilities_of(template)
    assert (found.marks, found.dialect) == (None, None)
    assert found.unavailable == {"reasoning": reasoning, "tool_calls": tool_calls}


def test_the_settings_win():
    found = abilities_of("{{ tools }}", marks=["<a>", "</a>"], dialect="glm")
    assert (found.marks, found.dialect, found.unavailable) == (ReasoningMarks("<a>", "</a>"), dialect_named("glm"), {})
    assert abilities_of(QWEN3, marks="none").unavailable == {"reasoning": NO_MARKS}
    with pytest.raises(MarksError):
        abilities_of(QWEN3, marks=["<a>", "<a>"])
    with pytest.raises(UnknownDialectError):
        abilities_of(QWEN3, dialect="klingon")


def chat(message: dict[str, Any], tools: ToolUse | None = None) -> ChatPrompt:
    return ChatPrompt("spec.chat", ({"role": "user", "content": "x"}, message), tools=tools or ToolUse())


TOOL = (Tool("f", "", {}),)
UNABLE = abilities_of("{{ messages }}")
REFUSED = {
    "tools": (chat({"role": "user"}, ToolUse(TOOL)), "tools"),
    "reasoning": (chat({"role": "assistant", "reasoning_content": "x"}), "messages[1].reasoning"),
    "calls": (chat({"role": "assistant", "tool_calls": ["x"]}), "messages[1].tool_calls"),
    "a name": (chat({"role": "user", "name": "ann"}), "messages[1].name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_template_would_leave_out_is_refused_by_its_field(name: str):
    asked, field = REFUSED[name]
    with pytest.raises(UnsupportedOption) as raised:
        check_chat(asked, UNABLE)
    assert raised.value.field == f"spec.chat.{field}"
    check_chat(asked, Abilities(ABLE.marks, ABLE.dialect, reads_names=True))


def test_tools_that_are_not_offered_need_no_template():
    check_chat(chat({"role": "user"}, ToolUse(TOOL, Choice.NONE)), UNABLE)


@pytest.mark.parametrize("source", ["{{ message.name }}", "{{ message['name'] }}", '{{ message["name"] }}'])
def test_a_template_that_reads_names_gets_them(source: str):
    check_chat(REFUSED["a name"][0], abilities_of(source))
