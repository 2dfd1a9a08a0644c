r"""Calls as Hermes, Qwen2.5 and Qwen3 write them: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`.

Source: chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen3, which put each mark on a line of its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.objects import json_call
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import JSON, Opens, Reader, Reading

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Hermes:
    """The dialect."""

    name: str = "hermes"
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls, each mark on a line of its own."""
        lark = Lark(special)
        calls = [
            lark.framed(
                f'{OPEN}\n{{"name": {json.dumps(tool.name)}, "arguments": ',
                lark.json_object(tool.schema),
                f"}}\n{CLOSE}",
            )
            for tool in tools
        ]
        return lark.grammar(calls, between="\n")


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN)
    yield from reader.space()
    text = yield from reader.bracketed("{", JSON)
    yield from reader.space()
    yield from reader.literal(CLOSE)
    return [json_call(text, coercion)]
