"""Refuses what a request asks for and this build does not know: nothing is silently ignored."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gateway.errors import InvalidField, UnsupportedOption, Violation

NOT_BUILT = "is not built yet"


def refuse_unknown(request: Message) -> None:
    """Refuse a request that has fields, at any depth, which this build does not know.

    Raises:
        UnsupportedOption: it has; the first is named by its path and number.
    """
    path = _unknown(request, "")
    if path:
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
        raise InvalidField((Violation(name, f"is not within {low:g} to {high:g}"),))


def _unknown(message: Message, prefix: str) -> str:
    """Return the path of the first unknown field, empty where there is none."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"{prefix}{unknown[0].field_number}"
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else (value,):
            path = _unknown(one, f"{prefix}{field.name}.")
            if path:
                return path
    return ""
