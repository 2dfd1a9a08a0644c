"""The schemas inside a schema: where they are, and the schema with others in their places."""

from collections.abc import Callable
from typing import Any, cast

from worker.constraints.keywords import LIST_OF_SCHEMAS, MAP_OF_SCHEMAS, ONE_SCHEMA

Schema = dict[str, Any] | bool


def pointer(where: str, *parts: str | int) -> str:
    """Return the place of a part, as a JSON pointer behind `#`."""
    return "/".join([where, *(str(part).replace("~", "~0").replace("/", "~1") for part in parts)])


def replaced(schema: dict[str, Any], where: str, replace: Callable[[Schema, str], Schema]) -> dict[str, Any]:
    """Return a reduced schema with each schema directly inside it replaced.

    Args:
        schema: stays as it is.
        where: its place.
        replace: gives what takes the place of a schema, of which it is told the place.
    """
    return {key: _replaced(key, part, pointer(where, key), replace) for key, part in schema.items()}


def _replaced(key: str, part: object, place: str, replace: Callable[[Schema, str], Schema]) -> object:
    if key in MAP_OF_SCHEMAS:
        named = cast("dict[str, Schema]", part)
        return {name: replace(each, pointer(place, name)) for name, each in named.items()}
    if key in LIST_OF_SCHEMAS or (key in ONE_SCHEMA and isinstance(part, list)):
        return [replace(each, pointer(place, index)) for index, each in enumerate(cast("list[Schema]", part))]
    return replace(cast("Schema", part), place) if key in ONE_SCHEMA else part
