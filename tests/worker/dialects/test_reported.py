"""Failures that users of other servers reported, and what is right instead (mlx-lm 1239 and 1417, Rapid-MLX 579)."""

from typing import Any

import pytest

from worker.dialects.call import Tool, ToolCall
from worker.dialects.choosing import dialect_named

from .transcripts import parsed

SCHEDULE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "deadline": {"type": "string"},
        "version": {"type": "string"},
        "priority": {"type": "integer"},
    },
}
TOOLS = {"schedule": Tool("schedule", "", SCHEDULE), "read": Tool("read", "", {})}


def scheduled(**values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=schedule>\n{parameters}</function>\n</tool_call>"


def test_strings_that_look_like_dates_and_numbers_stay_as_they_are() -> None:
    text = scheduled(deadline="2025-06-15T10:30:00Z") + "\n" + scheduled(version="3.10.5-beta")
    assert parsed(dialect_named("qwen3_coder").parser(TOOLS), list(text)) == [
        ToolCall("schedule", '{"deadline":"2025-06-15T10:30:00Z"}'),
        ToolCall("schedule", '{"version":"3.10.5-beta"}'),
    ]


@pytest.mark.parametrize(("written", "kept", "num_mismatched"), [("3.0", "3", 0), ("3.5", "3.5", 1)])
def test_a_number_with_a_fraction_for_an_integer_keeps_its_call(written: str, kept: str, num_mismatched: int) -> None:
    parser = dialect_named("qwen3_coder").parser(TOOLS)
    assert parsed(parser, [scheduled(priority=written)]) == [ToolCall("schedule", f'{{"priority":{kept}}}')]
    assert (parser.num_malformed, parser.num_mismatched) == (0, num_mismatched)


def test_a_call_of_mistral_is_the_same_for_every_cut() -> None:
    text = '[TOOL_CALLS]read[ARGS]{"path":"a.txt"}'
    for cut in range(len(text) + 1):
        parser = dialect_named("mistral").parser(TOOLS)
        pieces = [*parser.add(text[:cut]), *parser.add(text[cut:]), *parser.finish()]
        assert pieces == [ToolCall("read", '{"path":"a.txt"}')]
