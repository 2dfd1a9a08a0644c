"""Bodies of requests from the descriptors of the contract: right ones, nearly right ones, and bytes.

They are made on the wire, so that a field can have another wire type than its own, stand twice, or be one that nobody
knows.
"""

import struct
from collections.abc import Callable, Collection

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_DEPTH = 3
MAX_FIELDS = 6
MODEL = "m"
NAMES = (MODEL, MODEL, MODEL, "", "nobody", "org/name", "../../etc/passwd", "a b", "\x00", "ü" * 40, "x" * 300, "r1")
BLOBS = (b"", b"\xff", b"RIFF", b"\x00" * 40, b"fLaC\x00\x00\x00\x22", b"x" * 5000)
INTEGERS = (0, 1, 2, 3, 7, 127, 128, 1000, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
F = FieldDescriptor
Bytes = st.SearchStrategy[bytes]


def varint(value: int) -> bytes:
    """Return a number of up to 64 bits as it stands on the wire."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def tag(number: int, wire_type: int) -> bytes:
    """Return what stands before a field."""
    return varint(number << 3 | wire_type)


def block(number: int, content: bytes) -> bytes:
    """Return a field whose length stands before it."""
    return tag(number, LENGTH) + varint(len(content)) + content


def bodies(kind: Descriptor, without: Collection[str] = ()) -> Bytes:
    """Return a strategy of bodies for a message: mostly such as could be parsed, without the fields of these names."""
    whole = messages(kind, 0, without)
    return st.one_of(whole, whole, whole, st.builds(spoil, whole, spoilings()), st.binary(max_size=60))


def messages(kind: Descriptor, depth: int, without: Collection[str] = ()) -> Bytes:
    """Return a strategy of a message with some of its fields, some more than once, and of unknown ones."""
    fields = [field_bytes(field, depth) for field in kind.fields if field.name not in without]
    fields.append(unknown_fields(1 if without else 0))
    return st.lists(st.one_of(fields), max_size=MAX_FIELDS).map(b"".join)


def field_bytes(field: FieldDescriptor, depth: int) -> Bytes:
    """Return a strategy of one field, which stands there many times in rare cases."""
    kind = field.message_type
    if kind is not None:
        content = st.just(b"") if depth >= MAX_DEPTH else st.deferred(lambda: messages(kind, depth + 1))
        return content.map(lambda made: block(field.number, made))
    once = scalars(field)
    return st.one_of(once, once, once, once.map(lambda made: made * 40)) if field.is_repeated else once


def scalars(field: FieldDescriptor) -> Bytes:
    """Return a strategy of a field that is no message, right or of a wrong wire type."""
    number = field.number
    if field.type in {F.TYPE_STRING, F.TYPE_BYTES}:
        texts = [name.encode() for name in NAMES] if field.type == F.TYPE_STRING else []
        return st.sampled_from([*texts, *BLOBS]).map(lambda content: block(number, content))
    if field.type in {F.TYPE_FLOAT, F.TYPE_FIXED32, F.TYPE_SFIXED32}:
        return st.sampled_from(FLOATS).map(lambda value: tag(number, FIXED32) + struct.pack("<f", value))
    if field.type in {F.TYPE_DOUBLE, F.TYPE_FIXED64, F.TYPE_SFIXED64}:
        return st.sampled_from(FLOATS).map(lambda value: tag(number, FIXED64) + struct.pack("<d", value))
    return st.sampled_from(INTEGERS).map(lambda value: tag(number, VARINT) + varint(value))


def unknown_fields(first: int = 0) -> Bytes:
    """Return a strategy of fields that no message has, or, but for the `first` of them, not as a block."""
    numbers = st.sampled_from((1, 17, 100, 5000, 2**29 - 1)[first:])
    contents = st.sampled_from(BLOBS)
    return st.builds(block, numbers, contents)


def spoilings() -> st.SearchStrategy[tuple[str, int, int]]:
    """Return a strategy of what is done to a body, where, and with which byte."""
    ways = st.sampled_from(("cut", "flip", "insert", "twice", "swap", "grow"))
    return st.tuples(ways, st.integers(0, 4000), st.integers(0, 255))


def spoil(body: bytes, spoiling: tuple[str, int, int]) -> bytes:
    """Return a body with something wrong in it."""
    way, where, byte = spoiling
    at = where % (len(body) + 1)
    ways: dict[str, Callable[[], bytes]] = {
        "cut": lambda: body[:at],
        "flip": lambda: body[:at] + bytes(one ^ byte for one in body[at : at + 1]) + body[at + 1 :],
        "insert": lambda: body[:at] + bytes((byte,)) + body[at:],
        "twice": lambda: body + body,
        "swap": lambda: body[at:] + body[:at],
        "grow": lambda: body[:at] + b"\xff" * (byte % 12) + body[at:],
    }
    return ways[way]()
