"""Calls that are written like Python's: what Llama's pythonic checkpoints and MiniCPM share."""

from worker.dialects.call import Tool, ToolCall
from worker.dialects.coercion import Coercion
from worker.dialects.lark import Lark, parameters
from worker.dialects.literals import read_arguments
from worker.dialects.reader import NotACallError, Notation, Reader, Reading
from worker.dialects.schema import Schema

PYTHON = Notation("()[]{}", ('"', "'"), ('"', "'"), r"[\w\s,:=.+\-]")


def read_call(reader: Reader, coercion: Coercion, *, must_be_declared: bool) -> Reading[ToolCall]:
    """Read one call from its name to its closing bracket."""
    name = yield from reader.name()
    if must_be_declared and not coercion.is_declared(name):
        raise NotACallError
    text = yield from reader.bracketed("(", PYTHON)
    try:
        return coercion.call(name, read_arguments(text))
    except ValueError:
        raise NotACallError from None


def call_rule(lark: Lark, tool: Tool, separator: str) -> str:
    """Return the expression of one call of a tool, its arguments in the order declared and only those."""
    schema = Schema(tool.schema)
    members: list[tuple[str, bool]] = []
    for key, declared, is_required in parameters(schema):
        is_flag = (
            schema.kinds(declared) == frozenset({"boolean"}) and "enum" not in declared and "const" not in declared
        )
        value = '("True" | "False")' if is_flag else lark.json(declared, schema.root)
        members.append((f"({lark.framed(f'{key}=', value)})", is_required))
    return lark.framed(f"{tool.name}(", lark.listed(members, separator), ")")
