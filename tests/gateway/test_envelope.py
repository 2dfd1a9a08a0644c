"""Finding the envelope in the bytes of a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pomona.v1 import common_pb2, generation_pb2

from gateway.envelope import MODEL_FIELD, Envelope, read_envelope, text_field
from gateway.errors import GatewayError
from gateway.request_errors import InvalidField, MalformedRequest

MODEL = b"\x0a\x01m"


def body(**fields: object) -> bytes:
    return generation_pb2.StreamGenerateRequest(**fields).SerializeToString()  # type: ignore[arg-type]


def test_reads_model_id_and_priority() -> None:
    assert read_envelope(body(model="org/m.1", request_id="r", priority=-128)) == Envelope("org/m.1", "r", -128)


def test_what_is_not_given_is_empty() -> None:
    assert read_envelope(body(model="m")) == Envelope("m", "", 0)


def test_fields_may_come_in_any_order() -> None:
    parts = [body(priority=5), body(request_id="r"), body(model="m")]
    spec = body(spec=generation_pb2.GenerationSpec(prompt="p"))
    assert read_envelope(b"".join((spec, *parts))) == Envelope("m", "r", 5)


def test_the_last_value_wins() -> None:
    first, last = body(model="a", request_id="1", priority=1), body(model="b", request_id="2", priority=2)
    assert read_envelope(first + last) == Envelope("b", "2", 2)


def test_the_sixteenth_field_is_still_read() -> None:
    adapter = body(adapters=[common_pb2.AdapterUse(adapter="a")])
    assert read_envelope(adapter * 15 + MODEL).model == "m"


def test_the_seventeenth_field_is_not_read() -> None:
    adapter = body(adapters=[common_pb2.AdapterUse(adapter="a")])
    with pytest.raises(MalformedRequest):
        read_envelope(adapter * 16 + MODEL)


def test_what_lies_behind_the_envelope_is_not_decoded() -> None:
    assert read_envelope(MODEL * 16 + b"\xff\xff\xff").model == "m"


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xff\xff",
        b"\x0a",
        b"\x0a\x05ab",
        b"\x08\x01",
        b"\x12\x01r",
        MODEL + b"\x10\x01",
        MODEL + b"\x22\x01a",
        MODEL + b"\x00\x01",
        MODEL + b"\x2b",
        MODEL + b"\x2e",
        MODEL + b"\x2d\x00",
        MODEL + b"\x29\x00",
        MODEL + b"\x28" + b"\x80" * 11,
        MODEL + b"\xfa\xff\xff\xff\xff\x01\x00",
    ],
)
def test_wrong_wire_data_is_malformed(wrong: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_envelope(wrong)


@pytest.mark.parametrize("model", ["-m", "a/b/c", "a//b", "/a", "a/", "..", "a b", "ä", "m\n", "a/../b", "x" * 201])
def test_a_name_that_no_model_can_have_is_an_invalid_field(model: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_envelope(body(model=model))
    assert caught.value.violations[0].field == "model"


@pytest.mark.parametrize("request_id", ["x" * 65, "a\tb", "ä", "\x7f"])
def test_a_request_id_must_be_short_and_printable(request_id: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_envelope(body(model="m", request_id=request_id))
    assert caught.value.violations[0].field == "request_id"


@pytest.mark.parametrize("priority", [-129, 128, 2**31 - 1, -(2**31)])
def test_a_priority_must_be_in_its_range(priority: int) -> None:
    with pytest.raises(InvalidField) as caught:
        read_envelope(body(model="m", priority=priority))
    assert caught.value.violations[0].field == "priority"


@pytest.mark.parametrize("model", ["m", "org/model-1.5_b", "x" * 200])
def test_an_added_name_is_what_protobuf_reads(model: str) -> None:
    added = body(model="alias", request_id="r") + text_field(MODEL_FIELD, model)
    parsed = generation_pb2.StreamGenerateRequest.FromString(added)
    assert (parsed.model, parsed.request_id, read_envelope(added).model) == (model, "r", model)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        envelope = read_envelope(raw)
    except GatewayError:
        return
    assert envelope.model


@given(
    model=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z"),
    request_id=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64),
    priority=st.integers(-128, 127),
    prompt=st.text(max_size=50),
)
def test_reads_what_protobuf_writes(model: str, request_id: str, priority: int, prompt: str) -> None:
    spec = generation_pb2.GenerationSpec(prompt=prompt)
    raw = body(model=model, request_id=request_id, priority=priority, spec=spec)
    assert read_envelope(raw) == Envelope(model, request_id, priority)
