"""What Gemma 4 may write as arguments of a tool, by its schema."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from worker.dialects.gemma4_values import QUOTE
from worker.dialects.lark import Lark, TextBounds
from worker.dialects.schema import Schema, items_of

_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def object_rule(lark: Lark, schema: Schema, declared: Any) -> str:
    """Return the expression of an object with the members that are declared, in alphabetical order, and only those."""
    return _Values(lark, schema).object(declared)


class _Values:
    """Writes one rule for each node of a schema, so that one that refers to itself ends."""

    def __init__(self, lark: Lark, schema: Schema) -> None:
        self._lark = lark
        self._schema = schema
        self._names: dict[int, str] = {}

    def object(self, declared: Any) -> str:
        shape = self._schema.part(declared, "object")
        properties: Mapping[str, Any] = shape.get("properties") or {}
        required: Sequence[str] = shape.get("required") or ()
        others = shape.get("additionalProperties")
        schemas = {**dict.fromkeys(required, others), **properties}
        members = [
            (f"({self._lark.framed(f'{key}:', self.value(schemas[key]))})", key in required) for key in sorted(schemas)
        ]
        return self._lark.framed("{", self._lark.listed(members, ","), "}")

    def value(self, declared: Any) -> str:
        node = self._schema.resolved(declared)
        if id(node) not in self._names:
            name = self._names[id(node)] = self._lark.name()
            self._lark.write(name, " | ".join(self._choices(node)))
        return self._names[id(node)]

    def _choices(self, node: Mapping[str, Any]) -> list[str]:
        members = items_of(node.get("enum")) or ([node["const"]] if "const" in node else [])
        if members:
            return [self._lark.written(_text_of(member)) for member in members]
        branches = items_of(node.get("anyOf")) or items_of(node.get("oneOf")) or items_of(node.get("allOf"))[:1]
        if branches and "type" not in node:
            return [self.value(each) for each in branches]
        kinds = self._schema.kinds(node)
        plain = [kind for kind in _KINDS if kind in (kinds or ("string", "number", "boolean", "null"))]
        return [self._of_kind(kind, node) for kind in plain]

    def _of_kind(self, kind: str, node: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                return f"{self._lark.written(QUOTE)} {self._lark.text_through(TextBounds.of(node), QUOTE)}"
            case "array":
                return self._array(node)
            case "object":
                return self.object(node)
            case _:
                bounds = {key: node[key] for key in _BOUNDS if key in node}
                return self._lark.json({"type": kind, **bounds}, {})

    def _array(self, node: Mapping[str, Any]) -> str:
        least: int = node.get("minItems", 0)
        most: int | None = node.get("maxItems")
        if most == 0:
            return '"[]"'
        item = self.value(node.get("items"))
        rest = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return self._lark.framed("[", f"({item} {rest}){'' if least else '?'}", "]")


def _text_of(value: Any) -> str:
    """Write a value of the schema's own as the model would."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case list():
            return f"[{','.join(map(_text_of, items_of(value)))}]"
        case dict():
            members = cast("dict[str, Any]", value)
            return f"{{{','.join(f'{key}:{_text_of(members[key])}' for key in sorted(members))}}}"
        case _:
            return str(value)
