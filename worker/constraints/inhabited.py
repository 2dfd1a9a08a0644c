"""Takes out of a reduced schema what no finite value fits, such as an object that requires another of its kind.

A grammar of such a part can be begun and never ended.
"""

from collections.abc import Mapping
from typing import Any

from worker.constraints.refusal import invalid
from worker.constraints.subschemas import Schema, replaced


def without_endless(root: Schema, definitions: Mapping[str, Schema]) -> tuple[Schema, dict[str, Schema]]:
    """Replace every part that no finite value fits by `false`.

    What fits nothing for another reason, such as two patterns that exclude each other, is not seen here.

    Args:
        root: a reduced schema.
        definitions: what `#/$defs/...` in it names.

    Raises:
        Refused: nothing is left of the root.
    """
    ending = _ending(definitions)
    if not _ends(root, ending):
        raise invalid("no finite JSON value fits the schema")
    if len(ending) == len(definitions):
        return root, dict(definitions)
    return _pruned(root, ending), {name: _pruned(each, ending) for name, each in definitions.items() if name in ending}


def _ending(definitions: Mapping[str, Schema]) -> set[str]:
    """Return the names of those that some finite value may fit: the least such set."""
    ending: set[str] = set()
    rest = dict(definitions)
    while found := {name for name, schema in rest.items() if _ends(schema, ending)}:
        ending |= found
        rest = {name: schema for name, schema in rest.items() if name not in found}
    return ending


def _ends(schema: Schema, ending: set[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and _name(schema) not in ending:
        return False
    if not all(_ends(each, ending) for each in schema.get("allOf", [])):
        return False
    for choice in ("anyOf", "oneOf"):
        if choice in schema and not any(_ends(each, ending) for each in schema[choice]):
            return False
    return all(_ends(each, ending) for each in _certain(schema))


def _certain(schema: Mapping[str, Any]) -> list[Schema]:
    """Return the schemas of what every fitting value contains."""
    match schema.get("type"):
        case "object" | ["object"]:
            properties = schema.get("properties", {})
            return [properties[name] for name in schema.get("required", []) if name in properties]
        case "array" | ["array"]:
            least = schema.get("minItems", 0)
            items: Schema | list[Schema] = schema.get("items", True)
            first: list[Schema] = [*schema.get("prefixItems", []), *(items if isinstance(items, list) else [])]
            rest: list[Schema] = [] if isinstance(items, list) or least <= len(first) else [items]
            return [*first[:least], *rest]
        case _:
            return []


def _pruned(schema: Schema, ending: set[str]) -> Schema:
    if isinstance(schema, bool):
        return schema
    return replaced(schema, "#", lambda each, _: _pruned(each, ending)) if _ends(schema, ending) else False


def _name(schema: Mapping[str, Any]) -> str:
    return schema["$ref"].removeprefix("#/$defs/")
