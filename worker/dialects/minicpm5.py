"""Calls as MiniCPM5 writes them: `<function name="f"><param name="key">value</param></function>`, with nothing around.

A value with `<`, `&` or a line break in it stands in `<![CDATA[` and `]]>`.

Source: MiniCPM5's chat template, as read by vLLM's and mlx-lm's parsers of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark, TextBounds
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import Opens, Reader, Reading
from worker.dialects.tagged import Tags, arguments_rule, read_arguments

OPEN, NAME = "<function", ' name="'
TAGS = Tags('<param name="', '">', "", "</param>", "</function>", line="")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_SECTION = re.compile(r"\s*<!\[CDATA\[(.*?)\]\]>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MiniCpm5:
    """The dialect."""

    name: str = "minicpm5"
    marks: tuple[str, ...] = (OPEN, "<param", TAGS.value_end, TAGS.end)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN + NAME), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls."""
        lark = Lark(special)
        calls = [
            lark.framed(f'{OPEN}{NAME}{tool.name}">', arguments_rule(lark, tool, TAGS, _text), TAGS.end)
            for tool in tools
        ]
        return lark.grammar(calls)


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN + NAME)
    name = yield from reader.name()
    yield from reader.literal('">')
    arguments = yield from read_arguments(reader, TAGS)
    return [coercion.call_of_texts(name, {key: _without_section(text) for key, text in arguments.items()})]


def _without_section(text: str) -> str:
    section = _SECTION.fullmatch(text)
    return text if section is None else section[1]


def _text(lark: Lark, bounds: TextBounds, tags: Tags) -> str:
    plain = lark.text_through(bounds, tags.value_end, without=r"<&\n")
    section = lark.text_through(bounds, _CDATA_END)
    return f"({plain} | {lark.written(_CDATA)} {section} {lark.written(tags.value_end)})"
