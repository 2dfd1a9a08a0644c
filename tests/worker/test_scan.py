"""Bodies as large as may come, made of the smallest fields: each is refused after a bounded look, beside the loop."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from pomona.v1 import generation_pb2 as pb

from tests.support.waiting import eventually
from tests.worker.fields import ALL_FIELDS, named
from tests.worker.specs import MODEL
from worker import scan, wire
from worker.errors import InvalidField, RequestError, UnsupportedOption
from worker.services.bodies import INLINE_BYTES, MAX_WAITING, BodyReader
from worker.validation import read_count, read_generation

BODY_BYTES = 15_000_000
# The walk itself is a tenth of a second; what protobuf takes, and a machine that is busy, are within this.
LONGEST_S = 8.0
# Before, the loop stood still for over ten seconds.
LONGEST_GAP_S = 4.0


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sized(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def body_of(path: tuple[FieldDescriptor, ...], content: bytes) -> bytes:
    """Put content into the message at a path."""
    for field in reversed(path):
        content = sized(field.number, content)
    return content


def smallest(field: FieldDescriptor) -> bytes:
    """Return one element of a list in as few bytes as there are."""
    if field.message_type is not None or field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        return sized(field.number, b"")
    return varint(field.number << 3) + b"\x01"


def large_bodies() -> Iterator[Any]:
    for kind, path in ALL_FIELDS:
        if path[-1].is_repeated and kind is not pb.StreamGenerateRequest:
            element = smallest(path[-1])
            body = body_of(path[:-1], element * (BODY_BYTES // len(element)))
            yield pytest.param(kind, body, id=f"{kind.__name__}.{named(path)}")
    spec = (pb.GenerateRequest.DESCRIPTOR.fields_by_name["spec"],)
    packed = sized(3, sized(1, b"\x01" * BODY_BYTES))
    yield pytest.param(pb.GenerateRequest, body_of(spec, packed), id="packed token ids")
    nulls = sized(6, sized(1, b"\x08\x00") * (BODY_BYTES // 4))
    entry = sized(1, b"x") + sized(2, nulls)
    yield pytest.param(pb.GenerateRequest, body_of(spec, sized(1, sized(5, entry))), id="null values")
    yield pytest.param(pb.GenerateRequest, b"\xf8\x07\x00" * (BODY_BYTES // 3), id="unknown fields")
    yield pytest.param(pb.GenerateRequest, b"\xfb\x07\xfc\x07" * (BODY_BYTES // 4), id="unknown groups")
    late = b"\x20\x01" * (BODY_BYTES // 2) + b"\xf8\x07\x00"
    yield pytest.param(pb.GenerateRequest, late, id="an unknown field at the end")


def reader_of(kind: type[Any]) -> Callable[[bytes], object]:
    if kind is pb.CountTokensRequest:
        return read_count
    return lambda body: read_generation(body, kind, MODEL)


@pytest.mark.parametrize(("kind", "body"), list(large_bodies()))
async def test_the_largest_body_of_the_smallest_fields_is_refused_while_the_loop_turns(
    kind: type[Any], body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_counted = 0
    count = scan._Walk._count

    def counting(walk: Any, *place: Any) -> None:
        nonlocal num_counted
        num_counted += 1
        count(walk, *place)

    monkeypatch.setattr(scan._Walk, "_count", counting)
    gaps: list[float] = []

    async def heartbeat() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - begun)

    beating = asyncio.create_task(heartbeat())
    async with asyncio.timeout(LONGEST_S):
        with pytest.raises(RequestError):
            await BodyReader().read(body, reader_of(kind))
    await eventually(lambda: bool(gaps))
    beating.cancel()

    assert num_counted <= scan.MAX_FIELDS + 1
    assert max(gaps) < LONGEST_GAP_S


def test_packed_numbers_are_one_field() -> None:
    body = sized(1, b"m") + sized(5, sized(3, sized(1, b"\x01" * BODY_BYTES)))
    assert scan.scan(body, pb.GenerateRequest.DESCRIPTOR) == 4


def test_values_have_a_bound_of_their_own() -> None:
    request = pb.GenerateRequest()
    values = request.spec.chat.template_vars["x"].list_value.values
    for _ in range(scan.MAX_VALUES - 1):
        values.add().bool_value = True
    wire.parse(request.SerializeToString(), pb.GenerateRequest)
    values.add().bool_value = True
    with pytest.raises(InvalidField) as raised:
        wire.parse(request.SerializeToString(), pb.GenerateRequest)
    assert raised.value.field == 'spec.chat.template_vars["x"].list_value.values[9999]'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (sized(5, sized(4, sized(12, b"\x08\x05\x15\0\0\x80\x3f\x48\x01"))), "spec.sampling.logit_bias[5].9"),
        (sized(5, sized(1, sized(5, sized(1, b"k" * 99) + sized(2, b"\xf8\x07\x00")))), f'"{"k" * 64}"].127'),
        (b"\x08\x01", "1"),
        (sized(5, sized(1, sized(1, b"") + sized(1, b"\x38\x01"))), "spec.chat.messages[1].7"),
    ],
)
def test_what_is_unknown_is_named_even_where_protobuf_drops_it(body: bytes, field: str) -> None:
    """In an entry of a map, behind a long key, as a known number of another type, and in a list."""
    with pytest.raises(UnsupportedOption) as raised:
        wire.parse(body, pb.GenerateRequest)
    assert raised.value.field.endswith(field)


async def test_small_bodies_are_read_at_once_and_large_ones_wait_their_turn() -> None:
    reader = BodyReader()
    coroutine = reader.read(b"x" * INLINE_BYTES, len)
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert stopped.value.value == INLINE_BYTES

    large = [asyncio.ensure_future(reader.read(b"x" * (INLINE_BYTES + 1), len)) for _ in range(MAX_WAITING + 1)]
    done = await asyncio.gather(*large, return_exceptions=True)
    assert [type(each).__name__ for each in done].count("QueueFull") == 1
    assert await reader.read(b"x" * (INLINE_BYTES + 1), len) == INLINE_BYTES + 1
