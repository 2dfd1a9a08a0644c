"""Reads a request body strictly: what this build does not know is refused by name and never dropped."""

from collections.abc import Iterator
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from worker.errors import MalformedRequest
from worker.scan import scan

M = TypeVar("M", bound=Message)


def parse(body: bytes, kind: type[M]) -> M:
    """Parse a body, with every field and enum value known, and one member of each oneof at most.

    Raises:
        MalformedRequest: it is no such message.
        UnsupportedOption: it holds a field or an enum value that this build does not know.
        InvalidField: it gives two members of a oneof, of which protobuf would keep the last, or it is made of more
            fields and values than any request needs.
        ConstraintTooComplex: its constraint alone is.
    """
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise MalformedRequest("the body is not a protobuf message of this method") from None
    scan(body, cast("Descriptor", message.DESCRIPTOR))
    return message


def messages_in(message: Message, prefix: str = "") -> Iterator[tuple[str, Message]]:
    """Walk the messages that one message holds, each element of a list; maps hold none of ours.

    Yields:
        The path (`spec.chat.messages[2]`) and the message.
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        path = f"{prefix}{field.name}"
        if not field.is_repeated:
            yield path, value
        elif not field.message_type.GetOptions().map_entry:
            for index, element in enumerate(value):
                yield f"{path}[{index}]", element
