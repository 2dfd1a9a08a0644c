"""Bodies are read strictly: no field is unknown, and no oneof is given twice."""

from typing import Any

import pytest
from pomona.v1 import generation_pb2 as pb

from worker import wire
from worker.errors import InvalidField, MalformedRequest, UnsupportedOption
from worker.scan import MAX_FIELDS
from worker.validation import read_count, read_generation

from .fields import ALL_FIELDS, set_field
from .specs import KINDS, MODEL, base


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_is_unknown_is_refused_wherever_it_is(kind: type[Any]) -> None:
    message = base(kind)
    with pytest.raises(UnsupportedOption) as raised:
        outcome_or_raise(kind, message.SerializeToString() + b"\xa2\x06\x01x")
    assert raised.value.field == "100"


def outcome_or_raise(kind: type[Any], body: bytes) -> Any:
    return read_count(body) if kind is pb.CountTokensRequest else read_generation(body, kind, MODEL)


def test_an_unknown_field_deep_down_is_named_by_its_path() -> None:
    message = pb.ChatMessage.FromString(b"\x08\x02\x12\x01x\xa2\x06\x01x")
    body = base(pb.GenerateRequest, spec=pb.GenerationSpec(chat=pb.ChatInput(messages=[message]))).SerializeToString()
    with pytest.raises(UnsupportedOption) as raised:
        outcome_or_raise(pb.GenerateRequest, body)
    assert raised.value.field == "spec.chat.messages[0].100"


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05ab", b"\x0a\x01\xff", b"\x08\x01" * 3 + b"\x0b"])
def test_bytes_that_are_no_message_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        outcome_or_raise(pb.GenerateRequest, body)


def test_more_fields_than_any_client_writes_are_refused_by_the_one_too_many() -> None:
    more = pb.GenerateRequest(priority=1).SerializeToString() * MAX_FIELDS
    with pytest.raises(InvalidField, match="priority: more than"):
        outcome_or_raise(pb.GenerateRequest, base(pb.GenerateRequest).SerializeToString() + more)


@pytest.mark.parametrize("kind", KINDS)
def test_two_inputs_are_refused_by_both_names(kind: type[Any]) -> None:
    chat = pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, text="x")])
    more = kind(chat=chat) if kind is pb.CountTokensRequest else kind(spec=pb.GenerationSpec(chat=chat))
    with pytest.raises(InvalidField, match="prompt and chat"):
        outcome_or_raise(kind, base(kind).SerializeToString() + more.SerializeToString())


def sized(number: int, content: bytes) -> bytes:
    """Write a field of bytes below 128."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize("members", [(b"\x12\x00", b"\x0a\x01a"), (b"\x0a\x01a", b"\x12\x00")])
def test_a_part_of_two_kinds_is_refused_whichever_protobuf_would_keep(members: tuple[bytes, bytes]) -> None:
    message = b"\x08\x02" + sized(3, b"".join(members))
    body = sized(1, b"m") + sized(2, b"r") + sized(5, sized(1, sized(1, message)))
    with pytest.raises(InvalidField, match=r"give one of (text and media|media and text), not both") as raised:
        outcome_or_raise(pb.GenerateRequest, body)
    assert raised.value.field == "spec.chat.messages[0].parts[0]"


@pytest.mark.parametrize("kind", KINDS)
def test_every_oneof_of_a_request_takes_one_member(kind: type[Any]) -> None:
    for path in [path for of, path in ALL_FIELDS if of is kind]:
        field = path[-1]
        oneof = field.containing_oneof
        others = [] if oneof is None else [each for each in oneof.fields if each is not field]
        for other in others:
            first, second = kind(), kind()
            set_field(first, path)
            set_field(second, (*path[:-1], other))
            # In pieces, as protobuf merges them: only lists make an element anew each time.
            if not any(each.is_repeated for each in path[:-1]):
                with pytest.raises(InvalidField, match=f"{field.name} and {other.name}"):
                    wire.parse(first.SerializeToString() + second.SerializeToString(), kind)


def test_the_last_envelope_counts_as_protobuf_says() -> None:
    body = base(pb.GenerateRequest).SerializeToString() + pb.GenerateRequest(model="canonical").SerializeToString()
    assert outcome_or_raise(pb.GenerateRequest, body).envelope.model == "canonical"
