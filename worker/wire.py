"""Reads a request body strictly: what this build does not know is refused by name and never dropped."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from worker.errors import InvalidField, MalformedRequest, UnsupportedOption

M = TypeVar("M", bound=Message)

# No level of a request has as many fields; each occurrence on the wire counts.
MAX_FIELDS_SCANNED = 64
_FIXED_SIZES = {1: 8, 5: 4}


def parse(body: bytes, kind: type[M]) -> M:
    """Parse a body, with every field and enum value known.

    Raises:
        MalformedRequest: it is no such message.
        UnsupportedOption: it holds a field or an enum value that this build does not know.
    """
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise MalformedRequest("the body is not a protobuf message of this method") from None
    before = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != before:
        message.ParseFromString(body)
        raise UnsupportedOption(_unknown_field(message, "") or "request", "unknown field")
    for path, field, value in leaves(message):
        if field.enum_type is not None and value not in field.enum_type.values_by_number:
            raise UnsupportedOption(path, f"unknown value {value}")
    return message


def require_one_input(body: bytes, message: Message, *, parent: str = "") -> None:
    """Refuse a body that gives two members of the oneof `input`, of which protobuf would keep the last.

    Args:
        body: what `message` was parsed from.
        message: the request.
        parent: name of the message field that holds the oneof; empty: the request itself.

    Raises:
        InvalidField: it names both members.
        MalformedRequest: more fields at one level than any client writes.
    """
    parts, holder = [body], message
    if parent:
        number = message.DESCRIPTOR.fields_by_name[parent].number
        parts = [body[start:end] for found, start, end in _scan(body) if found == number]
        holder = cast("Message", getattr(message, parent))
    members = {field.number: field.name for field in holder.DESCRIPTOR.oneofs_by_name["input"].fields}
    given = {members[number]: None for part in parts for number, _, _ in _scan(part) if number in members}
    if len(given) > 1:
        raise InvalidField(parent or next(iter(given)), f"give one of {' and '.join(given)}, not both")


def leaves(message: Message, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Walk all set fields, however deep, that are no messages themselves.

    Yields:
        The path (`spec.chat.messages[2].role`), the field's descriptor, and a single value of it.
    """
    for path, field, value in children(message, prefix):
        if isinstance(value, Message):
            yield from leaves(value, f"{path}.")
        else:
            yield path, field, value


def children(message: Message, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Walk the set fields of one message: each element of a list, each value of a map.

    Yields:
        The path, the field's descriptor, and the element.
    """
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if not field.is_repeated:
            yield path, field, value
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            for key, element in cast("Mapping[Any, Any]", value).items():
                yield f"{path}[{key!r}]", entry, element
        else:
            for index, element in enumerate(value):
                yield f"{path}[{index}]", field, element


def _unknown_field(message: Message, prefix: str) -> str | None:
    """Return the path of the first unknown field, which ends in its number."""
    for field in UnknownFieldSet(message):
        return f"{prefix}{field.field_number}"
    for path, _, value in children(message, prefix):
        found = _unknown_field(value, f"{path}.") if isinstance(value, Message) else None
        if found is not None:
            return found
    return None


def _scan(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Walk the top-level fields of a body that has been parsed: number, start and end of the content."""
    position = 0
    for _ in range(MAX_FIELDS_SCANNED):
        if position >= len(body):
            return
        tag, position = _varint(body, position)
        kind = tag & 7
        start = position
        if kind == 0:
            _, position = _varint(body, position)
        elif kind == 2:
            size, start = _varint(body, position)
            position = start + size
        else:
            position += _FIXED_SIZES[kind]
        yield tag >> 3, start, position
    if position < len(body):
        raise MalformedRequest(f"more than {MAX_FIELDS_SCANNED} fields at one level")


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position
