"""How protobuf lies in bytes: numbers, and where values begin and end."""

from gateway.request_errors import MalformedRequest

VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
MAX_VARINT_BYTES = 10
MAX_FIELD_NUMBER = (1 << 29) - 1


def value_at(body: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """Return where the value at `position` starts and ends; the end may lie behind the body.

    Raises:
        MalformedRequest: there is no such wire type, or a length does not end.
    """
    if wire_type == LENGTH:
        size, start = varint_at(body, position)
        return start, start + size
    if wire_type == VARINT:
        return position, varint_at(body, position)[1]
    if wire_type in FIXED_BYTES:
        return position, position + FIXED_BYTES[wire_type]
    raise MalformedRequest(f"wire type {wire_type} is not used")


def varint_at(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and where the next thing starts.

    Raises:
        MalformedRequest: it does not end.
    """
    value = 0
    for shift, byte in enumerate(body[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    raise MalformedRequest("a number in it does not end")
