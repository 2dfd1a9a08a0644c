"""What a tool's JSON schema says of the kinds of values: no more of it than reading calls needs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

MAX_REFERENCES = 32  # followed one after the other
_UNIONS = ("anyOf", "oneOf")

Node = Mapping[str, Any]
_ANYTHING: Node = MappingProxyType({})


class Schema:
    """The schema of one tool's arguments.

    Args:
        root: parsed; references lead to places within it.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self._kinds: dict[int, frozenset[str] | None] = {}
        self._parts: dict[tuple[int, str], Node] = {}

    def kinds(self, schema: Any) -> frozenset[str] | None:
        """Return the kinds of value that a schema within this one allows, integers within `number`; None: any.

        Args:
            schema: of one value; anything but an object allows any.
        """
        if not isinstance(schema, Mapping):
            return None
        if id(cast("Node", schema)) not in self._kinds:
            self._kinds[id(cast("Node", schema))] = self._kinds_of(cast("Node", schema), set())
        return self._kinds[id(cast("Node", schema))]

    def part(self, schema: Any, kind: str) -> Node:
        """Return the first branch of a schema's unions that describes values of a kind; without unions, it itself."""
        if not isinstance(schema, Mapping):
            return _ANYTHING
        key = (id(cast("Node", schema)), kind)
        if key not in self._parts:
            self._parts[key] = self._part_of(cast("Node", schema), kind)
        return self._parts[key]

    def member(self, schema: Node, key: str) -> Any:
        """Return the schema of one member of an object, by the part of a schema that describes objects."""
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return cast("Node", properties)[key]
        return schema.get("additionalProperties")

    def resolved(self, schema: Any) -> Node:
        """Follow a schema's references; what leads nowhere allows anything."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping):
                return _ANYTHING
            node = cast("Node", schema)
            if not isinstance(reference := node.get("$ref"), str):
                return node
            schema = self._pointed(reference)
        return _ANYTHING

    def _kinds_of(self, schema: Any, seen: set[int]) -> frozenset[str] | None:
        """Do it without a second look at any node, so that nothing that refers to itself costs more than its size."""
        node = self.resolved(schema)
        seen.add(id(node))
        members = items_of(node.get("enum")) or ([node["const"]] if "const" in node else [])
        if members:
            return frozenset(map(kind_of_plain, members))
        if (declared := node.get("type")) is not None:
            kinds = frozenset(map(str, items_of(declared) or [declared]))
            return kinds | {"null"} if node.get("nullable") is True else kinds
        for union in _UNIONS:
            if branches := items_of(node.get(union)):
                return _joined([self._kinds_of(each, seen) for each in self._unseen(branches, seen)])
        known = [self._kinds_of(each, seen) for each in self._unseen(items_of(node.get("allOf")), seen)]
        certain = [each for each in known if each is not None]
        return certain[0].intersection(*certain[1:]) if certain else None

    def _part_of(self, schema: Node, kind: str) -> Node:
        node = self.resolved(schema)
        for _ in range(MAX_REFERENCES):
            branches = [each for union in (*_UNIONS, "allOf") for each in items_of(node.get(union))]
            fitting = [each for each in branches if kind in (self.kinds(each) or ())]
            if not fitting or "type" in node:
                return node
            node = self.resolved(fitting[0])
        return _ANYTHING

    def _unseen(self, branches: list[Any], seen: set[int]) -> list[Any]:
        return [each for each in branches if id(self.resolved(each)) not in seen]

    def _pointed(self, reference: str) -> Any:
        """Return what a JSON pointer after `#` leads to (RFC 6901, without percent signs)."""
        node: Any = self.root if reference.startswith("#") else None
        for step in reference[1:].split("/")[1:]:
            if not isinstance(node, Mapping):
                return None
            node = cast("Node", node).get(step.replace("~1", "/").replace("~0", "~"))
        return node


def items_of(value: Any) -> list[Any]:
    """Return a list of the schema, empty where there is none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def kind_of_plain(value: Any) -> str:
    """Return the word for the kind of a value of the schema's own, such as a member of `enum`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _joined(branches: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [each for each in branches if each is not None]
    return frozenset[str]().union(*known) if len(known) == len(branches) else None
