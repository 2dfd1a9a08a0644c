"""Finds the envelope of a request (model, request id, priority) in its bytes without decoding the rest.

Every data-plane request begins with `string model = 1; string request_id = 2; repeated AdapterUse adapters = 3;
int32 priority = 4`. At most the first 16 top-level fields are looked at, in any order, and the last value wins, as it
does in protobuf. What lies behind them the worker compares with what it was told: a difference is refused there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.catalogue import is_name
from gateway.request_errors import InvalidField, MalformedRequest, Violation
from gateway.wire import LENGTH, MAX_FIELD_NUMBER, VARINT, value_at, varint_at

MAX_FIELDS = 16
MAX_REQUEST_ID_CHARS = 64
MIN_PRIORITY = -128
MAX_PRIORITY = 127

MODEL_FIELD = 1
REQUEST_ID_FIELD = 2
PRIORITY_FIELD = 4

NOT_CONTENT = frozenset({MODEL_FIELD, REQUEST_ID_FIELD, PRIORITY_FIELD})
WIRE_TYPES = {MODEL_FIELD: LENGTH, REQUEST_ID_FIELD: LENGTH, 3: LENGTH, PRIORITY_FIELD: VARINT}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a request says of itself: `request_id` is empty where the client gave none."""

    model: str
    request_id: str
    priority: int


def read_envelope(body: bytes) -> Envelope:
    """Return the envelope of a serialized request.

    Raises:
        MalformedRequest: the bytes are not protobuf, or there is no model among the first 16 fields.
        InvalidField: the model, the request id or the priority is not one that can be.
    """
    model, request_id, priority = b"", b"", 0
    for number, start, end in _fields(body):
        if number == MODEL_FIELD:
            model = body[start:end]
        elif number == REQUEST_ID_FIELD:
            request_id = body[start:end]
        elif number == PRIORITY_FIELD:
            priority = _signed(varint_at(body, start)[0])
    if not model:
        raise MalformedRequest(f"there is no model among its first {MAX_FIELDS} fields")
    return Envelope(_model(model), _request_id(request_id), _priority(priority))


def text_field(number: int, text: str) -> bytes:
    """Return a string field; behind a serialized message its value wins over an earlier one.

    Args:
        number: the field's number, at most 15.
        text: ASCII, at most 16,383 characters.
    """
    size = len(text)
    length = bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    return b"".join((bytes((number << 3 | LENGTH,)), length, text.encode("ascii")))


def content_of(body: bytes) -> Iterator[memoryview]:
    """Yield the bytes of a request but for model, request id and priority, as far as `read_envelope` looks.

    Raises:
        MalformedRequest: the bytes are not protobuf.
    """
    view, kept, begin = memoryview(body), 0, 0
    for number, _, end in _fields(body):
        if number in NOT_CONTENT:
            yield view[kept:begin]
            kept = end
        begin = end
    yield view[kept:]


def _fields(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the value of each of the first fields."""
    position, end = 0, len(body)
    for _ in range(MAX_FIELDS):
        if position == end:
            return
        tag, position = varint_at(body, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= MAX_FIELD_NUMBER or WIRE_TYPES.get(number, wire_type) != wire_type:
            raise MalformedRequest(f"field {number} has another type")
        start, position = value_at(body, position, wire_type)
        if position > end:
            raise MalformedRequest("it ends within a field")
        yield number, start, position


def _signed(value: int) -> int:
    """Read the low 32 bits as an int32, as protobuf does."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _model(raw: bytes) -> str:
    text = raw[:256].decode("ascii", "replace")
    if not is_name(text):
        raise InvalidField((Violation("model", "is not the name of a model"),))
    return text


def _request_id(raw: bytes) -> str:
    text = raw[: MAX_REQUEST_ID_CHARS + 1].decode("ascii", "replace")
    if len(text) > MAX_REQUEST_ID_CHARS or not (text.isascii() and text.isprintable()):
        raise InvalidField((Violation("request_id", "is not at most 64 printable ASCII characters"),))
    return text


def _priority(value: int) -> int:
    if not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidField((Violation("priority", f"is not within {MIN_PRIORITY} to {MAX_PRIORITY}"),))
    return value
