"""A walk over every field of every request."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from .specs import KINDS

# Where messages contain themselves, or are somebody else's.
OPAQUE = {"google.protobuf.Value", "google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Duration"}


def field_paths(
    descriptor: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in descriptor.fields:
        yield (*path, field)
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry and inner.full_name not in OPAQUE:
            yield from field_paths(inner, (*path, field))


def named(path: tuple[FieldDescriptor, ...]) -> str:
    return ".".join(field.name for field in path)


ALL_FIELDS = [(kind, path) for kind in KINDS for path in field_paths(kind.DESCRIPTOR)]


def set_field(message: Any, path: tuple[FieldDescriptor, ...]) -> None:
    """Set the last field of the path to a value that is not its default, making what lies before."""
    for field in path[:-1]:
        inner = getattr(message, field.name)
        if not field.is_repeated:
            inner.SetInParent()
            message = inner
        else:
            message = inner[0] if len(inner) else inner.add()
    field = path[-1]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        set_entry(getattr(message, field.name), field.message_type.fields_by_name["value"])
    elif field.message_type is not None:
        made = getattr(message, field.name)
        made.add() if field.is_repeated else made.SetInParent()
        if field.message_type.full_name == "google.protobuf.Duration":
            made.nanos = 50_000_000
    elif field.is_repeated:
        getattr(message, field.name).append(scalar(field))
    else:
        setattr(message, field.name, scalar(field))


def set_entry(entries: Any, value: FieldDescriptor) -> None:
    if value.message_type is not None:
        entries["mood"].string_value = "glad"
    else:
        entries[3] = 0.5


def scalar(field: FieldDescriptor) -> Any:
    """Return a value that is valid where the field is honoured."""
    return {
        FieldDescriptor.CPPTYPE_STRING: b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_FLOAT: 0.5,
        FieldDescriptor.CPPTYPE_ENUM: 2,
    }.get(field.cpp_type, 3)
