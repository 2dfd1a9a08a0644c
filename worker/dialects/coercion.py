"""Makes a call's arguments of what was written, by the tool's JSON schema and never beyond it.

Where a value has its kind from the dialect (JSON, Python, Gemma), only a whole number such as `3.0` changes, to `3`,
where an integer is declared. Where a dialect writes bare text (XML), the text is a string wherever a string is allowed
or nothing is declared; else it is read as JSON of the declared kinds. One exception: `null`, where null is declared
beside string, is null, as nothing else could say it. What fits no declared kind stays as it is written, and is counted.
"""

from collections.abc import Mapping
from typing import Any

from worker.dialects.call import Tool, ToolCall
from worker.dialects.schema import Schema
from worker.dialects.values import Number, Value, is_whole, number_of, read_json, whole, write

# Templates write true and null of Python as they are.
_WORDS: Mapping[str, tuple[str, bool | None]] = {
    "true": ("boolean", True),
    "True": ("boolean", True),
    "false": ("boolean", False),
    "False": ("boolean", False),
    "null": ("null", None),
    "None": ("null", None),
}


class Coercion:
    """Makes calls for one sequence.

    Args:
        tools: those that are declared; the arguments of another stay as they are written.

    Attributes:
        num_mismatched: values that fit no declared kind.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.num_mismatched = 0
        self._schemas = {name: Schema(tool.schema) for name, tool in tools.items()}
        self._unknown = Schema({})

    def is_declared(self, name: str) -> bool:
        """Say whether there is such a tool."""
        return name in self._schemas

    def call(self, name: str, values: dict[str, Value]) -> ToolCall:
        """Make a call whose arguments came with their kinds."""
        schema = self.schema(name)
        return ToolCall(name, write(self._members(values, schema.root, schema)))

    def call_of_texts(self, name: str, texts: Mapping[str, str]) -> ToolCall:
        """Make a call whose arguments came as bare texts."""
        schema = self.schema(name)
        shape = schema.part(schema.root, "object")
        return ToolCall(
            name, write({key: self.of_text(text, schema.member(shape, key), schema) for key, text in texts.items()})
        )

    def of_text(self, text: str, declared: Any, schema: Schema) -> Value:
        """Return what a bare text means.

        Args:
            text: as written.
            declared: schema of the value.
            schema: that which it belongs to.
        """
        kinds = schema.kinds(declared)
        bare = text.strip()
        kind, meant = word_of(bare)
        if kinds is None or "string" in kinds:
            return None if kinds and kind == "null" and "null" in kinds else text
        if kind in kinds:
            return meant
        if (number := number_of(bare)) is not None and kinds & {"integer", "number"}:
            return self._fit(number, declared, schema)
        if bare[:1] in {"[", "{"} and (value := _structure(bare)) is not None and kind_of(value) in kinds:
            return self._fit(value, declared, schema)
        self.num_mismatched += 1
        return text

    def schema(self, name: str) -> Schema:
        """Return the schema of a tool's arguments; one that allows anything where it is not declared."""
        return self._schemas.get(name, self._unknown)

    def _members(self, values: dict[str, Value], declared: Any, schema: Schema) -> dict[str, Value]:
        shape = schema.part(declared, "object")
        return {key: self._fit(value, schema.member(shape, key), schema) for key, value in values.items()}

    def _fit(self, value: Value, declared: Any, schema: Schema) -> Value:
        kinds = schema.kinds(declared)
        kind = kind_of(value)
        if kinds is not None and kind not in kinds and not (kind == "integer" and "number" in kinds):
            self.num_mismatched += 1
            return value
        if isinstance(value, Number):
            return whole(value) if kind == "integer" and kinds and "number" not in kinds else value
        if isinstance(value, dict):
            return self._members(value, declared, schema)
        if isinstance(value, list):
            items = schema.part(declared, "array").get("items")
            return [self._fit(each, items, schema) for each in value]
        return value


def word_of(text: str) -> tuple[str, bool | None]:
    """Return what a text that is a word for true, false or null means, and its kind; an empty kind: it is none."""
    return _WORDS.get(text, ("", None))


def kind_of(value: Value) -> str:
    """Return the JSON schema's word for the kind of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case Number():
            return "integer" if is_whole(value) else "number"
        case list():
            return "array"
        case _:
            return "object"


def _structure(text: str) -> Value:
    try:
        return read_json(text)
    except ValueError:
        return None
