"""What models write, in every dialect, and what it means: the ground that the tests of parsers stand on."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.dialects.call import Tool, ToolCall
from worker.dialects.choosing import dialect_named
from worker.dialects.dialect import ToolParser

NUMBER_OR_NULL = {"type": ["number", "null"]}
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "range": {"type": "object", "properties": {"from": NUMBER_OR_NULL, "to": NUMBER_OR_NULL}},
    },
    "required": ["query"],
}
TOOLS = {
    "search": Tool("search", "Looks things up.", SEARCH),
    "now": Tool("now", "Says what time it is.", {}),
    "read": Tool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
}
HI, FIND = ToolCall("now", "{}"), ToolCall("search", '{"query":"ďábel 👋","limit":3}')


@dataclass(frozen=True, slots=True)
class Transcript:
    """One output, and the pieces that it comes to."""

    dialect: str
    text: str
    pieces: tuple[str | ToolCall, ...]
    num_malformed: int = 0

    def parser(self) -> ToolParser:
        return dialect_named(self.dialect).parser(TOOLS)


def joined(pieces: Iterable[str | ToolCall]) -> list[str | ToolCall]:
    """Join the texts that follow each other."""
    result: list[str | ToolCall] = []
    for are_texts, group in itertools.groupby(pieces, key=lambda piece: isinstance(piece, str)):
        items = list(group)
        result += ["".join(map(str, items))] if are_texts else items
    return result


def parsed(parser: ToolParser, parts: Sequence[str]) -> list[str | ToolCall]:
    return joined([piece for part in parts for piece in parser.add(part)] + parser.finish())


def search(arguments: str) -> ToolCall:
    return ToolCall("search", arguments)


def _hermes() -> Iterable[Transcript]:
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "ďábel 👋", "limit": 3}}\n</tool_call>'
    now = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    name = "hermes"
    yield Transcript(name, f"I look it up.\n{call}\n{now}", ("I look it up.", FIND, HI))
    yield Transcript(name, f"{now}\n\n  Now you know.\n", (HI, "Now you know.\n"))
    yield Transcript(
        name,
        r'<tool_call>{"name":"search","arguments":{"query":"a </tool_call> {\"}[ \u00e9\\","range":{"to":1.50}}}'
        "</tool_call>",
        (search(r'{"query":"a </tool_call> {\"}[ é\\","range":{"to":1.50}}'),),
    )
    yield Transcript(name, "The <tool_call> mark and <tool_ call.", ("The <tool_call> mark and <tool_ call.",), 1)
    yield Transcript(name, f'{call}<tool_call>{{"name": }}</tool_call>', (FIND, '<tool_call>{"name": }</tool_call>'), 1)
    yield Transcript(name, call[:-4], (call[:-4],), 1)
    yield Transcript(name, f"<tool_call><tool_call>{call}", ("<tool_call><tool_call>", FIND), 2)


def _qwen3_coder() -> Iterable[Transcript]:
    call = (
        "<tool_call>\n<function=search>\n<parameter=query>\nďábel 👋\n</parameter>\n<parameter=limit>\n3\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    name = "qwen3_coder"
    yield Transcript(name, f"Yes.\n\n{call}\n{call}\n", ("Yes.", FIND, FIND))
    yield Transcript(name, "<tool_call>\n<function=now>\n</function>\n</tool_call>", (HI,))
    bare = "<function=search>\n<parameter=query>\n a\n\n</parameter> b</function>\n</parameter>\n</function>"
    value = search('{"query":" a\\n\\n</parameter> b</function>"}')
    yield Transcript(name, f"Bare: {bare}\n</tool_call>\nDone.", ("Bare:", value, "Done."))
    yield Transcript(name, f"{bare} and no more", (value, "and no more"))
    yield Transcript(name, call.replace("</function>", ""), (call.replace("</function>", ""),), 1)
    yield Transcript(name, "if a <function=3: <tool_call>", ("if a <function=3: <tool_call>",), 2)


def _llama3_json() -> Iterable[Transcript]:
    call = '{"name": "search", "parameters": {"query": "ďábel 👋", "limit": 3}}'
    now = '{"type": "function", "name": "now", "parameters": {}}'
    name = "llama3_json"
    yield Transcript(name, call, (FIND,))
    yield Transcript(name, f" <|python_tag|>{call}; {now}\n{now}", (FIND, HI, HI))
    yield Transcript(name, f"See: {now}", (f"See: {now}",))
    yield Transcript(name, f"{now}; and so on", (HI, "; and so on"))
    yield Transcript(name, '{"name": "Bob", "parameters": {}}', ('{"name": "Bob", "parameters": {}}',))
    yield Transcript(name, '{"answer": {"name": "now"}}', ('{"answer": {"name": "now"}}',))
    yield Transcript(name, "<|python_tag|>print(1)", ("<|python_tag|>print(1)",), 1)
    yield Transcript(name, f"So: <|python_tag|>{now}", ("So:", HI))


def _llama3_pythonic() -> Iterable[Transcript]:
    name = "llama3_pythonic"
    find = 'search(query="ďábel 👋", limit=3)'
    yield Transcript(name, f"[{find}, now()]", (FIND, HI))
    yield Transcript(name, f"\n<|python_start|>[now()]<|python_end|>\n{find}", (HI, find))
    yield Transcript(
        name,
        r"""[search(query='it\'s [")] \ud83d\udc4b', exact=True, tags=["a", 'b'], range={"to": -1.5e3, """
        "'from': None})]",
        (search('{"query":"it\'s [\\")] 👋","exact":true,"tags":["a","b"],"range":{"to":-1.5e3,"from":null}}'),),
    )
    yield Transcript(name, "[1, 2] and [now()]", ("[1, 2] and [now()]",))
    yield Transcript(name, "[unknown(a=1)]", ("[unknown(a=1)]",))
    yield Transcript(name, "[now(), search(1)]", ("[now(), search(1)]",))
    yield Transcript(name, "[search(query=exec('x'))]", ("[search(query=exec('x'))]",))


def _mistral() -> Iterable[Transcript]:
    call = '[TOOL_CALLS]search[ARGS]{"query": "ďábel 👋", "limit": 3}'
    for name in ("mistral", "mistral_array"):
        yield Transcript(name, f"Well.{call}[TOOL_CALLS]now[CALL_ID]a1B2[ARGS]{{}}", ("Well.", FIND, HI))
        yield Transcript(
            name,
            '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "ďábel 👋", "limit": 3}, "id": "x"}, '
            '{"name": "now"}]',
            (FIND, HI),
        )
        yield Transcript(name, '[TOOL_CALLS]read{"path":"[ARGS]"}', (ToolCall("read", '{"path":"[ARGS]"}'),))
        yield Transcript(name, "[TOOL_CALLS] [1] [TOOL_", ("[TOOL_CALLS] [1] [TOOL_",), 1)
        yield Transcript(name, "[TOOL_CALLS]two words", ("[TOOL_CALLS]two words",), 1)
        endless = f"[TOOL_CALLS]now[CALL_ID]{'a' * 70}"
        yield Transcript(name, f"{endless}[TOOL_CALLS]now[ARGS]{{}}", (endless, HI), 1)


def _gemma4() -> Iterable[Transcript]:
    call = '<|tool_call>call:search{query:<|"|>ďábel 👋<|"|>,limit:3}<tool_call|>'
    name = "gemma4"
    yield Transcript(name, f"{call}{call}<|tool_call>call:now{{}}<tool_call|>", (FIND, FIND, HI))
    yield Transcript(
        name,
        '<|tool_call>call:search{query:<|"|>{"a": [}<tool_call|><|"|>,exact:true,range:{from:-1.50,to:null},'
        'tags:[<|"|>x<|"|>]}<tool_call|>',
        (search('{"query":"{\\"a\\": [}<tool_call|>","exact":true,"range":{"from":-1.50,"to":null},"tags":["x"]}'),),
    )
    yield Transcript(
        name,
        '<|tool_call>call:search{query: 007, tags:["a,b", c d]}<tool_call|>',
        (search('{"query":"007","tags":["a,b","c d"]}'),),
    )
    yield Transcript(name, "<|tool_call>search{}<tool_call|>", ("<|tool_call>search{}<tool_call|>",), 1)
    yield Transcript(name, f"{call[:40]}", (call[:40],), 1)


def _glm() -> Iterable[Transcript]:
    lines = (
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>ďábel 👋</arg_value>\n<arg_key>limit</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>"
    )
    for name in ("glm", "glm_inline"):
        yield Transcript(name, f"So:\n{lines}{lines.replace(chr(10), '')}", ("So:", FIND, FIND))
        yield Transcript(name, "<tool_call>now</tool_call>", (HI,))
        yield Transcript(
            name,
            "<tool_call>search<arg_key>query</arg_key><arg_value>\n</arg_value></arg_value><arg_key>tags</arg_key>"
            '<arg_value>["a", "</tool_call>"]</arg_value></tool_call>',
            (search('{"query":"\\n</arg_value>","tags":["a","</tool_call>"]}'),),
        )
        yield Transcript(name, "<tool_call>a b</tool_call>", ("<tool_call>a b</tool_call>",), 1)
        yield Transcript(name, lines[:-1], (lines[:-1],), 1)


def _minicpm() -> Iterable[Transcript]:
    find, name = 'search(query="ďábel 👋",limit=3)', "minicpm"
    block = f"<|tool_call_start|>\n```python\n{find}\nnow()\n```\n<|tool_call_end|>"
    yield Transcript(name, f"{block}\nDone.", (FIND, HI, "Done."))
    yield Transcript(
        name,
        block.replace("now()", "other(a=true, b=[1, {'c': None}])"),
        (FIND, ToolCall("other", '{"a":true,"b":[1,{"c":null}]}')),
    )
    empty = "<|tool_call_start|>\n```python\n```\n<|tool_call_end|>"
    yield Transcript(name, f"{empty} {block}", (empty, FIND, HI), 1)
    yield Transcript(name, block.replace("()", "(1)"), (block.replace("()", "(1)"),), 1)


def _minicpm5() -> Iterable[Transcript]:
    call = '<function name="search"><param name="query">ďábel 👋</param><param name="limit">3</param></function>'
    name = "minicpm5"
    yield Transcript(name, f"{call}{call}\nok", (FIND, FIND, "ok"))
    yield Transcript(
        name,
        '<function name="search"><param name="query"><![CDATA[<a>\n</param>&]]></param></function>',
        (search('{"query":"<a>\\n</param>&"}'),),
    )
    yield Transcript(name, '<function name="now"></function>', (HI,))
    yield Transcript(name, '<function name="now">x</function>', ('<function name="now">x</function>',), 1)


TRANSCRIPTS: tuple[Transcript, ...] = tuple(
    itertools.chain(
        _hermes(),
        _qwen3_coder(),
        _llama3_json(),
        _llama3_pythonic(),
        _mistral(),
        _gemma4(),
        _glm(),
        _minicpm(),
        _minicpm5(),
    )
)
