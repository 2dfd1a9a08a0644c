"""Calls as Llama 3.1 to 3.3 write them: `{"name": "f", "parameters": {…}}`, at times after `<|python_tag|>`.

Nothing marks a call off from an answer that is JSON. So without the tag only an answer that begins with such an object,
of a tool that is declared, is a call; further ones may follow it, with or without a `;` between.

Source: Meta's prompt format of Llama 3.1, and its chat template.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark
from worker.dialects.objects import json_call
from worker.dialects.parsing import CallParser, Syntax
from worker.dialects.reader import JSON, NotACallError, Opens, Reader, Reading

TAG = "<|python_tag|>"
_KEYS = ('"name"', '"parameters"', '"arguments"', '"type"', '"id"')  # that such an object begins with


@dataclass(frozen=True, slots=True)
class Llama3Json:
    """The dialect."""

    name: str = "llama3_json"
    marks: tuple[str, ...] = (TAG,)

    def parser(self, tools: Mapping[str, Tool]) -> CallParser:
        """Return a fresh parser."""
        return CallParser(Syntax(Opens(TAG), _read, initial="{", following="{;"), tools)

    def grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str:
        """Write the grammar of one call: the templates of these checkpoints refuse a message with several."""
        lark = Lark(special)
        calls = [
            lark.framed(f'{{"name": {json.dumps(tool.name)}, "parameters": ', lark.json_object(tool.schema), "}")
            for tool in tools
        ]
        return lark.text(" | ".join(calls))


def _read(reader: Reader, coercion: Coercion) -> Reading[list[ToolCall]]:
    opening = yield from reader.one_of(TAG, "{", ";")
    if opening != "{":
        yield from reader.space()
        yield from reader.literal("{")
    yield from reader.space()
    key = yield from reader.one_of(*_KEYS)
    yield from reader.space()
    call = json_call("{" + key + (yield from reader.rest_of("}", JSON)), coercion)
    if opening != TAG and not coercion.is_declared(call.name):
        raise NotACallError
    return [call]
