"""Calls as Llama 3.2's and Llama 4's pythonic prompts ask for them: `[f(a=1), g(b="x")]`.

Nothing need mark them off from an answer. So only an answer that begins with such a list, of tools that are all
declared, is a call; Llama 4's marks of Python around it may be there and are not content.

Source: Meta's prompt formats of Llama 3.2 and Llama 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.pythonic import call_rule, read_call
from worker.dialects.reader import Opens, Reader, Reading

OPEN, CLOSE = "<|python_start|>", "<|python_end|>"


@dataclass(frozen=True, slots=True)
class Llama3Pythonic:
    """The dialect."""

    name: str = "llama3_pythonic"
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read, initial="[", following="["), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one list of one or more calls."""
        lark = Lark(special)
        return lark.grammar([call_rule(lark, tool, ", ") for tool in tools], before="[", between=", ", after="]")


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    opening = yield from reader.one_of(OPEN, "[")
    if opening == OPEN:
        yield from reader.space()
        yield from reader.literal("[")
    calls: list[ToolCall] = []
    sign = ","
    while sign == ",":
        yield from reader.space()
        calls.append((yield from read_call(reader, coercion, must_be_declared=True)))
        yield from reader.space()
        sign = yield from reader.one_of(",", "]")
    if opening == OPEN and (yield from reader.ahead(CLOSE)):
        yield from reader.space()
        yield from reader.literal(CLOSE)
    return calls
