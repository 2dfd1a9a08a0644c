r"""Calls as Qwen3-Coder and Qwen3.5 write them.

`<tool_call>\n<function=f>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>`: a value stands on lines of
its own, so one line break at each of its ends is not part of it. Small ones leave out the outer mark at the beginning,
and then often write it at the end all the same.

Source: chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import Opens, Reader, Reading
from worker.dialects.tagged import Tags, arguments_rule, plain_text, read_arguments

OPEN, CLOSE, FUNCTION = "<tool_call>", "</tool_call>", "<function="
TAGS = Tags("<parameter=", ">", "", "</parameter>", "</function>", gap="\n")


@dataclass(frozen=True, slots=True)
class Qwen3Coder:
    """The dialect."""

    name: str = "qwen3_coder"
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN, FUNCTION), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls."""
        lark = Lark(special)
        calls = [
            lark.framed(
                f"{OPEN}\n{FUNCTION}{tool.name}>\n",
                arguments_rule(lark, tool, TAGS, plain_text),
                f"{TAGS.end}\n{CLOSE}",
            )
            for tool in tools
        ]
        return lark.grammar(calls, between="\n")


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    opening = yield from reader.one_of(OPEN, FUNCTION)
    if opening == OPEN:
        yield from reader.space()
        yield from reader.literal(FUNCTION)
    name = yield from reader.name()
    yield from reader.literal(">")
    arguments = yield from read_arguments(reader, TAGS)
    if opening == OPEN or (yield from reader.ahead(CLOSE)):
        yield from reader.space()
        yield from reader.literal(CLOSE)
    return [coercion.call_of_texts(name, {key: _without_lines(text) for key, text in arguments.items()})]


def _without_lines(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")
