"""Calls as Mistral's checkpoints write them, after `[TOOL_CALLS]` and without a mark at their end.

Older ones write an array, `[TOOL_CALLS] [{"name": "f", "arguments": {…}}]`, newer ones `[TOOL_CALLS]f[ARGS]{…}` for
each call, and between name and arguments at times `[CALL_ID]` and an id, which is not ours and is dropped. Both are
read whatever the checkpoint; they differ in what the grammar writes.

Source: chat templates of Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2, and mistral-common's tokenizers v3 to v13.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.objects import json_arguments, json_calls
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import JSON, Opens, Reader, Reading

OPEN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MAX_ID_CHARS = 64


@dataclass(frozen=True, slots=True)
class Mistral:
    """The dialect of newer checkpoints, or of older ones.

    Attributes:
        is_array: older.
    """

    name: str = "mistral"
    is_array: bool = False
    marks: tuple[str, ...] = (OPEN, ARGUMENTS, CALL_ID)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(OPEN), _read), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one or more calls, in one array or each after its own mark."""
        lark = Lark(special)
        if self.is_array:
            calls = [
                lark.framed(f'{{"name": {json.dumps(tool.name)}, "arguments": ', lark.json_object(tool.schema), "}")
                for tool in tools
            ]
            return lark.grammar(calls, before=f"{OPEN} [", between=", ", after="]")
        return lark.grammar(
            [lark.framed(f"{OPEN}{tool.name}{ARGUMENTS}", lark.json_object(tool.schema)) for tool in tools]
        )


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    yield from reader.literal(OPEN)
    yield from reader.space()
    if (yield from reader.ahead("[")):
        return json_calls((yield from reader.bracketed("[", JSON)), coercion)
    name = yield from reader.name()
    yield from reader.space()
    if (yield from reader.ahead(CALL_ID)):
        yield from reader.literal(CALL_ID)
        yield from reader.until(ARGUMENTS, MAX_ID_CHARS)
    elif (yield from reader.ahead(ARGUMENTS)):
        yield from reader.literal(ARGUMENTS)
    yield from reader.space()
    return [json_arguments(name, (yield from reader.bracketed("{", JSON)), coercion)]
