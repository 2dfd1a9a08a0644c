r"""Calls as MiniCPM3 and MiniCPM4 write them: a block of Python between marks, a call on each line.

`<|tool_call_start|>\n` + three backquotes + `python\nf(a=1)\ng(b="x")\n` + three backquotes + `\n<|tool_call_end|>`.

Source: chat template of openbmb/MiniCPM3-4B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.pythonic import call_rule, read_call
from worker.dialects.reader import NotACallError, Opens, Reader, Reading

OPEN, CLOSE, FENCE = "<|tool_call_start|>", "<|tool_call_end|>", "```"


@dataclass(frozen=True, slots=True)
class MiniCpm:
    """The dialect."""

    name: str = "minicpm"
    marks: tuple[str, ...] = (OPEN, CLOSE)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one block of one or more calls."""
        lark = Lark(special)
        return lark.grammar(
            [call_rule(lark, tool, ",") for tool in tools],
            before=f"{OPEN}\n{FENCE}python\n",
            between="\n",
            after=f"\n{FENCE}\n{CLOSE}",
        )


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN)
    yield from reader.space()
    yield from reader.literal(f"{FENCE}python")
    yield from reader.space()
    calls: list[ToolCall] = []
    while not (yield from reader.ahead(FENCE)):
        calls.append((yield from read_call(reader, coercion, must_be_declared=False)))
        yield from reader.space()
    yield from reader.literal(FENCE)
    yield from reader.space()
    yield from reader.literal(CLOSE)
    if not calls:
        raise NotACallError
    return calls
