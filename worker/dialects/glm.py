r"""Calls as GLM-4.5 to GLM-4.7 write them.

`<tool_call>f\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`, from GLM-4.7 on without line breaks.

Source: chat templates of zai-org/GLM-4.6 and GLM-4.7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import Opens, Reader, Reading
from worker.dialects.tagged import Tags, arguments_rule, plain_text, read_arguments

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGS = Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", CLOSE)


@dataclass(frozen=True, slots=True)
class Glm:
    """The dialect.

    Attributes:
        has_lines: whether the checkpoint writes line breaks between tags.
    """

    name: str = "glm"
    has_lines: bool = True
    marks: tuple[str, ...] = (OPEN, CLOSE, TAGS.key, TAGS.key_end, TAGS.value, TAGS.value_end)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls."""
        lark = Lark(special)
        tags = replace(TAGS, line="\n" if self.has_lines else "")
        calls = [
            lark.framed(f"{OPEN}{tool.name}{tags.line}", arguments_rule(lark, tool, tags, plain_text), CLOSE)
            for tool in tools
        ]
        return lark.grammar(calls, between=tags.line)


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN)
    yield from reader.space()
    name = yield from reader.name()
    return [coercion.call_of_texts(name, (yield from read_arguments(reader, TAGS)))]
