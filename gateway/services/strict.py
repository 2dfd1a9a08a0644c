"""Refuses what a request asks for and this build does not know: nothing is silently ignored."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gateway.request_errors import InvalidField, UnsupportedOption, Violation
from gateway.wire import FIXED32, FIXED64, LENGTH, VARINT, value_at, varint_at

NOT_BUILT = "is not built yet"
_WIRE_TYPES = {
    FieldDescriptor.CPPTYPE_STRING: LENGTH,
    FieldDescriptor.CPPTYPE_MESSAGE: LENGTH,
    FieldDescriptor.CPPTYPE_DOUBLE: FIXED64,
    FieldDescriptor.CPPTYPE_FLOAT: FIXED32,
}
_FIXED_TYPES = {
    FieldDescriptor.TYPE_FIXED32: FIXED32,
    FieldDescriptor.TYPE_SFIXED32: FIXED32,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_SFIXED64: FIXED64,
}


def refuse_unknown(request: Message, body: bytes) -> None:
    """Refuse a request that has fields, at any depth, which this build does not know.

    Args:
        request: loses those fields.
        body: what it was read from.

    Raises:
        UnsupportedOption: it has; the first is named by its path and number.
    """
    size = request.ByteSize()
    request.DiscardUnknownFields()
    if request.ByteSize() != size:
        path = _first_unknown(request.DESCRIPTOR, body, "") or "(a field)"
        raise UnsupportedOption((Violation(path, "is not known here"),))


def refuse_set(request: Message, *names: str, prefix: str = "") -> None:
    """Refuse a request in which one of the named fields is set.

    Raises:
        UnsupportedOption: some are; each is named, with `prefix` before it.
    """
    given = {field.name for field, _ in request.ListFields()}
    violations = tuple(Violation(prefix + name, NOT_BUILT) for name in names if name in given)
    if violations:
        raise UnsupportedOption(violations)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside `low` to `high`.

    Raises:
        InvalidField: it is outside, or not a number.
    """
    if not low <= value <= high:
        raise InvalidField((Violation(name, f"is not within {_number(low)} to {_number(high)}"),))


def _number(value: float) -> str:
    """Return a number with all of its digits where it is whole, however large."""
    return f"{value:d}" if isinstance(value, int) else f"{value:.15g}"


def _first_unknown(message: Any, body: bytes, prefix: str) -> str:
    """Return the path of the first field in `body` that `message`, a descriptor, does not know; empty without one."""
    position = 0
    while position < len(body):
        tag, position = varint_at(body, position)
        number, wire_type = tag >> 3, tag & 7
        field: FieldDescriptor | None = message.fields_by_number.get(number)
        if field is None or wire_type not in _wire_types(field):
            return f"{prefix}{number}"
        start, position = value_at(body, position, wire_type)
        if field.message_type is not None:
            path = _first_unknown(field.message_type, body[start:position], f"{prefix}{field.name}.")
            if path:
                return path
    return ""


def _wire_types(field: FieldDescriptor) -> set[int]:
    """Return how the values of a field may lie in bytes: a repeated one of numbers also packed."""
    own = _FIXED_TYPES.get(field.type, _WIRE_TYPES.get(field.cpp_type, VARINT))
    return {own, LENGTH} if field.is_repeated else {own}
