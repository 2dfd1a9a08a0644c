"""Calls whose arguments stand between tags, as bare text: what Qwen3-Coder, GLM and MiniCPM5 share.

A value is not escaped, so it may hold its own closing tag. It ends at the first one after which, past white space,
another argument or the end of the call follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.dialects.call import Tool
from worker.dialects.lark import Lark, TextBounds, parameters
from worker.dialects.reader import Reader, Reading
from worker.dialects.schema import Schema, items_of

MAX_KEY_CHARS = 256


@dataclass(frozen=True, slots=True)
class Tags:
    """How one dialect writes arguments.

    Attributes:
        key: what a key comes after.
        key_end: what it ends at.
        value: what a value comes after, past white space; empty: it begins right after the key.
        value_end: what it ends at.
        end: what comes after the last argument.
        gap: what a template writes before a value and after it.
        line: what it writes after each tag that is not within an argument.
    """

    key: str
    key_end: str
    value: str
    value_end: str
    end: str
    gap: str = ""
    line: str = "\n"


def read_arguments(reader: Reader, tags: Tags) -> Reading[dict[str, str]]:
    """Read all arguments of a call and the tag after them; of equal keys the last one counts."""
    arguments: dict[str, str] = {}
    yield from reader.space()
    while (yield from reader.one_of(tags.key, tags.end)) != tags.end:
        key = yield from reader.until(tags.key_end, MAX_KEY_CHARS)
        if tags.value:
            yield from reader.space()
            yield from reader.literal(tags.value)
        arguments[key.strip()] = yield from _value(reader, tags)
        yield from reader.space()
    return arguments


def arguments_rule(lark: Lark, tool: Tool, tags: Tags, text: Callable[[Lark, TextBounds, Tags], str]) -> str:
    """Return the expression of a tool's arguments, in the order declared and only those.

    Args:
        lark: the grammar.
        tool: whose arguments.
        tags: how they are written.
        text: expression of free text of a value and all through the tag that ends it.
    """
    schema = Schema(tool.schema)
    parts: list[str] = []
    for key, declared, is_required in parameters(schema):
        opening = f"{tags.key}{key}{tags.key_end}"
        opening += f"{tags.line}{tags.value}" if tags.value else ""
        value = _value_rule(lark, schema, declared, tags, text)
        line = f" {lark.written(tags.line)}" if tags.line else ""
        parts.append(f"({lark.written(opening + tags.gap)} {value}{line}){'' if is_required else '?'}")
    return " ".join(parts)


def plain_text(lark: Lark, bounds: TextBounds, tags: Tags) -> str:
    """Return the expression of free text that is written as it is."""
    return lark.text_through(bounds, tags.value_end, before=tags.gap)


def _value(reader: Reader, tags: Tags) -> Reading[str]:
    parts: list[str] = []
    while True:
        parts.append((yield from reader.until(tags.value_end)))
        if (yield from reader.ahead(tags.key, tags.end)):
            return "".join(parts)
        parts.append(tags.value_end)


def _value_rule(
    lark: Lark, schema: Schema, declared: Any, tags: Tags, text: Callable[[Lark, TextBounds, Tags], str]
) -> str:
    kinds = schema.kinds(declared)
    if kinds is not None and "string" not in kinds:
        return f"{lark.json(declared, schema.root)} {lark.written(tags.gap + tags.value_end)}"
    part: Mapping[str, Any] = schema.part(declared, "string")
    members = items_of(part.get("enum")) or ([part["const"]] if "const" in part else [])
    if members:
        texts = [each for each in members if isinstance(each, str)]
        return lark.one_through(texts, tags.value_end, before=tags.gap)
    return text(lark, TextBounds.of(part), tags)
