"""Walks the fields of a request as they stand on the wire, for what a parsed message no longer tells.

A parsed message has forgotten which member of a oneof came first, and its lists cost a Python object an element to look
at. The bytes tell both: this walk stops at the first field that is unknown, and at a bound on all it looks at.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from worker.errors import ConstraintTooComplex, InvalidField, UnsupportedOption

# Of all levels together, each occurrence. A chat of 4,096 messages with a part each takes 20,000, and a list of packed
# numbers one.
MAX_FIELDS = 1 << 16
# What the variables of a chat template may be made of.
MAX_VALUES = 10_000
MAX_KEY_CHARS = 64
CONSTRAINT = "spec.constraint."
_VALUE = "google.protobuf.Value"
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_WIRE_TYPES: Mapping[int, int] = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _SIZED,
    FieldDescriptor.TYPE_BYTES: _SIZED,
    FieldDescriptor.TYPE_MESSAGE: _SIZED,
}


def scan(body: bytes, kind: Descriptor) -> int:
    """Check the fields of a body that protobuf has parsed as a message of `kind`.

    Returns:
        How many fields it looked at.

    Raises:
        UnsupportedOption: a field or an enum value is unknown; its path ends in the field's number or name.
        InvalidField: two members of one oneof, or more fields or values than `MAX_FIELDS` and `MAX_VALUES`.
        ConstraintTooComplex: the same of those that a constraint is made of.
    """
    walk = _Walk(body)
    walk.message(_Place(None, "", kind), 0, len(body))
    return walk.num_fields


@dataclass(frozen=True, slots=True)
class _Field:
    """What the walk has to know of a field.

    Attributes:
        message: its type, where it is a message.
        enum_values: what it may be, where it is an enum.
        oneof: which oneof it belongs to.
    """

    name: str
    wire_types: frozenset[int]
    is_repeated: bool
    message: Descriptor | None
    enum_values: frozenset[int] | None
    oneof: str | None


class _Place:
    """A message within the body: what came of its oneofs, and the messages below, which the wire may give in pieces."""

    __slots__ = ("above", "below", "fields", "given", "is_entry", "is_value", "label")

    def __init__(self, above: "_Place | None", label: str, kind: Descriptor) -> None:
        self.above = above
        self.label = label
        self.fields = _fields_of(kind)
        self.is_entry = bool(kind.GetOptions().map_entry)
        self.is_value = kind.full_name == _VALUE
        self.given: dict[str, str] = {}
        self.below: dict[str, _Place | int] = {}

    def enter(self, field: _Field, kind: Descriptor) -> "_Place":
        """Return the place of a message below: a new one for each element of a list."""
        found = self.below.get(field.name, 0)
        if isinstance(found, _Place):
            return found
        if field.is_repeated:
            self.below[field.name] = found + 1
            return _Place(self, f"{field.name}[{found}]", kind)
        # The value of a map's entry stands where the entry does.
        made = _Place(self, "" if self.is_entry else field.name, kind)
        self.below[field.name] = made
        return made

    def path(self, name: str = "") -> str:
        """Return where this is, or its field `name`."""
        labels, place = [name], self
        while place is not None:
            labels.append(place.label)
            place = place.above
        return ".".join(label for label in reversed(labels) if label)


class _Walk:
    def __init__(self, body: bytes) -> None:
        self.num_fields = 0
        self._body = body
        self._num_values = 0

    def message(self, place: _Place, position: int, end: int) -> None:
        """Walk one message; protobuf has bounded how deep they nest."""
        self._num_values += place.is_value
        if self._num_values > MAX_VALUES:
            raise InvalidField(place.path(), f"more than {MAX_VALUES} values in all")
        while position < end:
            tag, position = _varint(self._body, position)
            number, wire_type = tag >> 3, tag & 7
            field = place.fields.get(number)
            if field is None or wire_type not in field.wire_types:
                raise UnsupportedOption(place.path(str(number)), "unknown field")
            self._count(place, field)
            position = self._content(place, field, wire_type, position)

    def _count(self, place: _Place, field: _Field) -> None:
        self.num_fields += 1
        if self.num_fields > MAX_FIELDS:
            path = place.path(field.name)
            # A list of choices that long is what its own limit would refuse.
            error = ConstraintTooComplex if path.startswith(CONSTRAINT) else InvalidField
            raise error(path, f"more than {MAX_FIELDS} fields and elements in all")
        if field.oneof is not None:
            first = place.given.setdefault(field.oneof, field.name)
            if first != field.name:
                raise InvalidField(place.path() or first, f"give one of {first} and {field.name}, not both")

    def _content(self, place: _Place, field: _Field, wire_type: int, position: int) -> int:
        """Look into the content of a field and return where it ends."""
        if wire_type in _FIXED_SIZES:
            return position + _FIXED_SIZES[wire_type]
        value, position = _varint(self._body, position)
        if wire_type == _VARINT:
            self._number(place, field, value)
            return position
        end = position + value
        if field.message is not None:
            self.message(place.enter(field, field.message), position, end)
        elif field.enum_values is not None:
            while position < end:
                value, position = _varint(self._body, position)
                self._count(place, field)
                self._number(place, field, value)
        elif place.is_entry and field.name == "key":
            key = self._body[position : min(end, position + 4 * MAX_KEY_CHARS)].decode("utf-8", "ignore")
            _name_entry(place, json.dumps(key[:MAX_KEY_CHARS], ensure_ascii=False))
        return end

    def _number(self, place: _Place, field: _Field, value: int) -> None:
        if field.enum_values is not None:
            signed = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            if signed not in field.enum_values:
                raise UnsupportedOption(place.path(field.name), f"unknown value {signed}")
        elif place.is_entry and field.name == "key":
            _name_entry(place, str(value))


def _name_entry(place: _Place, key: str) -> None:
    """Call an entry of a map by its key, now that it is read."""
    place.label = f"{place.label.partition('[')[0]}[{key}]"


@cache
def _fields_of(kind: Descriptor) -> Mapping[int, _Field]:
    return {field.number: _field(field) for field in kind.fields}


def _field(field: FieldDescriptor) -> _Field:
    wire_type = _WIRE_TYPES.get(field.type, _VARINT)
    return _Field(
        name=field.name,
        wire_types=frozenset({wire_type, _SIZED} if field.is_repeated else {wire_type}),
        is_repeated=field.is_repeated,
        message=field.message_type,
        enum_values=None if field.enum_type is None else frozenset(field.enum_type.values_by_number),
        oneof=None if field.containing_oneof is None else field.containing_oneof.name,
    )


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = body[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    shift = 7
    while True:
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position
