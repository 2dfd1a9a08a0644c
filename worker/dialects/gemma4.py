"""Calls as Gemma 4 writes them: `<|tool_call>call:f{key:<|"|>text<|"|>,n:1}<tool_call|>`.

Keys are bare, and so are numbers, `true`, `false` and `null`; lists and objects nest; a text stands between two marks
of its own and is not escaped. A bare value that is none of these is text, as it is written.

Source: chat template of google/gemma-4-31B-it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.gemma4_grammar import object_rule
from worker.dialects.gemma4_values import GEMMA, QUOTE, read_object
from worker.dialects.lark import Lark
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import NotACallError, Opens, Reader, Reading
from worker.dialects.schema import Schema

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"


@dataclass(frozen=True, slots=True)
class Gemma4:
    """The dialect."""

    name: str = "gemma4"
    marks: tuple[str, ...] = (OPEN, CLOSE, QUOTE)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls, keys in alphabetical order as the template writes them."""
        lark = Lark(special)
        calls = [
            lark.framed(f"{OPEN}call:{tool.name}", object_rule(lark, Schema(tool.schema), tool.schema), CLOSE)
            for tool in tools
        ]
        return lark.grammar(calls)


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN)
    yield from reader.space()
    yield from reader.literal("call:")
    name = yield from reader.name()
    text = yield from reader.bracketed("{", GEMMA)
    yield from reader.space()
    yield from reader.literal(CLOSE)
    try:
        return [coercion.call(name, read_object(text, coercion.schema(name)))]
    except ValueError:
        raise NotACallError from None
