"""Every field of a request changes something or is refused by its name, and every bound holds."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Value
from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from worker import validation, wire
from worker.chat import ChatPrompt, check_variables
from worker.errors import ContextTooLong, InvalidField, MalformedRequest, RequestError, UnsupportedOption
from worker.scan import MAX_FIELDS
from worker.sequence import SamplingSettings
from worker.validation import (
    MAX_LOGIT_BIASES,
    Count,
    Generation,
    ModelFacts,
    Stopping,
    Streaming,
    TextPrompt,
    TokenPrompt,
    read_count,
    read_generation,
)

MODEL = ModelFacts(vocab_size=100, max_context_tokens=50)
KINDS: tuple[type[Any], ...] = (pb.GenerateRequest, pb.StreamGenerateRequest, pb.CountTokensRequest)
# Where messages contain themselves, or are somebody else's.
OPAQUE = {"google.protobuf.Value", "google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Duration"}


def base(kind: type[Any], **fields: Any) -> Any:
    message = kind(model="m", request_id="r", **fields)
    if kind is pb.CountTokensRequest and message.WhichOneof("input") is None:
        message.prompt = "hello"
    if kind is not pb.CountTokensRequest and message.spec.WhichOneof("input") is None:
        message.spec.prompt = "hello"
    return message


def read(message: Any) -> Generation | Count:
    if isinstance(message, pb.CountTokensRequest):
        return read_count(message.SerializeToString())
    return read_generation(message.SerializeToString(), type(message), MODEL)


def generation(spec: pb.GenerationSpec) -> Generation:
    read_in = read(base(pb.GenerateRequest, spec=spec))
    assert isinstance(read_in, Generation)
    return read_in


def params(**fields: Any) -> pb.SamplingParams:
    return pb.SamplingParams(**fields)


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


def outcome(message: Any) -> Any:
    try:
        return read(message)
    except RequestError as error:
        return error


def prepared(kind: type[Any], path: tuple[FieldDescriptor, ...]) -> Any:
    """Return a valid request in which the field's own surroundings exist."""
    message = base(kind)
    names = [field.name for field in path[:-1]]
    if "chat" in names:
        holder = message if kind is pb.CountTokensRequest else message.spec
        parts = [pb.ContentPart(text="a")] if "parts" in names else []
        holder.chat.messages.add(role=pb.ROLE_ASSISTANT, parts=parts)
    if "token_ids" in names:
        message.spec.token_ids.ids.append(1)
    return message


def clean(path_text: str) -> str:
    """Take indices and keys out of a path."""
    return "".join(part.rpartition("]")[2] for part in path_text.split("["))


@pytest.mark.parametrize(
    ("kind", "path"), ALL_FIELDS, ids=lambda value: named(value) if isinstance(value, tuple) else value.__name__
)
def test_every_field_changes_something_or_is_refused_by_name(
    kind: type[Any], path: tuple[FieldDescriptor, ...]
) -> None:
    message = prepared(kind, path)
    before = outcome(message)
    assert not isinstance(before, RequestError)

    set_field(message, path)
    after = outcome(message)

    if isinstance(after, RequestError):
        assert isinstance(after, InvalidField | UnsupportedOption)
        field = clean(after.field)
        assert named(path) == field or named(path).startswith(f"{field}.") or field.startswith(f"{named(path)}.")
    else:
        assert after != before or named(path) in CONTAINERS


# Messages that say nothing by themselves; their fields are walked on their own.
CONTAINERS = {"spec", "spec.sampling", "spec.stopping", "spec.output", "stream_options"}


def test_the_walk_finds_the_fields() -> None:
    names = {named(path) for _, path in ALL_FIELDS}
    assert {"spec.chat.messages.parts.media.data", "stream_options.waiting_events", "return_token_ids"} <= names
    assert len(ALL_FIELDS) > 150


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


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1, 100], [-0.1, 100.5, math.nan, math.inf, -math.inf]),
        ("top_p", [0.01, 1], [0, -0.1, 1.1, math.nan]),
        ("top_k", [0, 1, 2**31 - 1], [-1]),
        ("min_p", [0, 1], [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0.1, 1, 100], [0, -1, 101, math.nan, math.inf]),
        ("frequency_penalty", [-100, 100], [101, math.nan, math.inf]),
        ("presence_penalty", [-100, 100], [-101, math.nan, -math.inf]),
        ("penalty_window", [0, 20, 2**32 - 1], []),
        ("seed", [0, 2**64 - 1], []),
        ("num_sequences", [1], [0]),
    ],
)
def test_sampling_values_have_bounds(name: str, good: list[float], bad: list[float]) -> None:
    for value in good:
        settings = generation(pb.GenerationSpec(sampling=params(**{name: value})))
        held = settings.seed if name == "seed" else getattr(settings.sampling, name, 1)
        assert held == pytest.approx(value)
    for value in bad:
        with pytest.raises(InvalidField) as raised:
            generation(pb.GenerationSpec(sampling=params(**{name: value})))
        assert raised.value.field == f"spec.sampling.{name}"


def test_more_than_one_sequence_is_not_supported() -> None:
    with pytest.raises(UnsupportedOption, match="num_sequences"):
        generation(pb.GenerationSpec(sampling=pb.SamplingParams(num_sequences=2)))


@pytest.mark.parametrize(
    ("biases", "path"),
    [
        ({100: 1.0}, "spec.sampling.logit_bias[100]"),
        ({1: 1000.5}, "spec.sampling.logit_bias[1]"),
        ({1: math.nan}, "spec.sampling.logit_bias[1]"),
        (dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 0.0), "spec.sampling.logit_bias"),
    ],
)
def test_logit_biases_have_bounds(biases: dict[int, float], path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(sampling=pb.SamplingParams(logit_bias=biases)))
    assert raised.value.field == path


@pytest.mark.parametrize(
    ("stopping", "path"),
    [
        (pb.StoppingParams(max_tokens=0), "max_tokens"),
        (pb.StoppingParams(stop_strings=["x"] * 17), "stop_strings"),
        (pb.StoppingParams(stop_strings=["x", ""]), "stop_strings[1]"),
        (pb.StoppingParams(stop_strings=["é" * 129]), "stop_strings[0]"),
        (pb.StoppingParams(stop_token_ids=[1] * 65), "stop_token_ids"),
        (pb.StoppingParams(stop_token_ids=[1, 100]), "stop_token_ids[1]"),
    ],
)
def test_stop_conditions_have_bounds(stopping: pb.StoppingParams, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(stopping=stopping))
    assert raised.value.field == f"spec.stopping.{path}"


def test_stop_conditions_are_taken_over() -> None:
    asked = pb.StoppingParams(
        max_tokens=5, stop_strings=["a", "é" * 128], stop_token_ids=[7, 8], ignore_eos=True, include_stop_in_output=True
    )
    assert generation(pb.GenerationSpec(stopping=asked)).stopping == Stopping(
        5, ("a", "é" * 128), frozenset({7, 8}), ignore_eos=True, include_stop_in_output=True
    )


def test_what_is_not_said_is_the_models_default() -> None:
    model = ModelFacts(100, 50, SamplingSettings(temperature=0.3, top_k=7), max_tokens=9)
    spec = pb.GenerationSpec(prompt="x", sampling=pb.SamplingParams(top_k=0))
    body = pb.GenerateRequest(model="m", request_id="r", spec=spec).SerializeToString()

    made = read_generation(body, pb.GenerateRequest, model)

    assert made.sampling == SamplingSettings(temperature=0.3, top_k=0)
    assert made.stopping.max_tokens == 9
    assert made.seed is None


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (pb.GenerationSpec(prompt=""), "spec.prompt"),
        (pb.GenerationSpec(token_ids=common_pb2.TokenIds()), "spec.token_ids.ids"),
        (pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[5, 100])), "spec.token_ids.ids[1]"),
        (pb.GenerationSpec(chat=pb.ChatInput()), "spec.chat.messages"),
    ],
)
def test_an_empty_or_impossible_prompt_is_refused(spec: pb.GenerationSpec, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(spec)
    assert raised.value.field == path


def test_a_request_without_any_input_is_refused() -> None:
    with pytest.raises(InvalidField) as raised:
        read(pb.GenerateRequest(model="m", request_id="r"))
    assert raised.value.field == "spec"
    with pytest.raises(InvalidField):
        read(pb.CountTokensRequest(model="m", request_id="r"))


class Unwalked(Sequence[int]):
    """Ids that can be counted but not looked at."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("walked")


def test_token_ids_are_measured_before_they_are_walked() -> None:
    with pytest.raises(ContextTooLong) as raised:
        validation._read_token_ids(Unwalked(50), MODEL)
    assert raised.value.metadata["prompt_tokens"] == "50"
    with pytest.raises(AssertionError, match="walked"):
        validation._read_token_ids(Unwalked(49), MODEL)
    assert generation(pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[99] * 49))).prompt == TokenPrompt(
        "spec.token_ids.ids", (99,) * 49
    )


@pytest.mark.parametrize("request_id", ["", "x" * 65, "tab\t", "schön", "\x7f"])
def test_a_request_id_has_a_bound(request_id: str) -> None:
    message = base(pb.GenerateRequest)
    message.request_id = request_id
    with pytest.raises(InvalidField, match="request_id"):
        read(message)


@pytest.mark.parametrize("priority", [-129, 128, 2**31 - 1])
def test_a_priority_has_a_bound(priority: int) -> None:
    with pytest.raises(InvalidField, match="priority"):
        read(base(pb.CountTokensRequest, priority=priority))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (pb.StreamOptions(coalesce_tokens=4097), "coalesce_tokens"),
        (pb.StreamOptions(coalesce_interval=Duration(seconds=11)), "coalesce_interval"),
        (pb.StreamOptions(coalesce_interval=Duration(nanos=-1)), "coalesce_interval"),
    ],
)
def test_stream_options_have_bounds(options: pb.StreamOptions, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        read(base(pb.StreamGenerateRequest, stream_options=options))
    assert raised.value.field == f"stream_options.{path}"


def test_stream_options_are_taken_over() -> None:
    options = pb.StreamOptions(coalesce_tokens=4, coalesce_interval=Duration(nanos=20_000_000), prefill_progress=True)
    made = read(base(pb.StreamGenerateRequest, stream_options=options))
    assert isinstance(made, Generation)
    assert made.streaming == Streaming(4, 0.02, prefill_progress=True)


def chat_of(**fields: Any) -> ChatPrompt:
    prompt = generation(pb.GenerationSpec(chat=pb.ChatInput(**fields))).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def said(role: Any, text: str = "x") -> pb.ChatMessage:
    return pb.ChatMessage(role=role, text=text)


def test_roles_and_parts_become_what_a_template_reads() -> None:
    parts = [pb.ContentPart(text="a"), pb.ContentPart(text="b")]
    chat = chat_of(
        messages=[
            said(pb.ROLE_SYSTEM),
            pb.ChatMessage(role=pb.ROLE_USER, parts=parts),
            said(pb.ROLE_ASSISTANT),
            said(pb.ROLE_TOOL),
        ]
    )
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool"]
    assert chat.messages[1]["content"] == "ab"


def test_template_variables_become_json_values() -> None:
    chat = pb.ChatInput(messages=[said(pb.ROLE_USER)], enable_thinking=False)
    chat.template_vars["whole"].number_value = 5
    chat.template_vars["part"].number_value = 0.5
    chat.template_vars["none"].null_value = 0  # pyright: ignore[reportAttributeAccessIssue]
    chat.template_vars["list"].list_value.values.add().bool_value = True
    chat.template_vars["map"].struct_value.fields["key"].string_value = "value"

    prompt = generation(pb.GenerationSpec(chat=chat)).prompt

    assert isinstance(prompt, ChatPrompt)
    assert prompt.variables == {
        "whole": 5,
        "part": 0.5,
        "none": None,
        "list": [True],
        "map": {"key": "value"},
        "enable_thinking": False,
    }
    assert isinstance(prompt.variables["whole"], int)


def bad_chats() -> Iterator[tuple[pb.ChatInput, str]]:
    user = said(pb.ROLE_USER)
    yield pb.ChatInput(messages=[pb.ChatMessage(text="x")]), "messages[0].role"
    yield (
        pb.ChatInput(messages=[user, pb.ChatMessage(role=pb.ROLE_USER, text="x", parts=[pb.ContentPart(text="y")])]),
        "messages[1].text",
    )
    yield pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, parts=[pb.ContentPart()])]), "messages[0].parts[0]"
    yield pb.ChatInput(messages=[user] * 4097), "messages"
    yield (
        pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, parts=[pb.ContentPart(text="y")] * 257)]),
        "messages[0].parts",
    )
    yield pb.ChatInput(messages=[user], continue_final_message=True), "continue_final_message"
    for name in ("not a name", "x" * 65, ""):
        yield with_variable(name, "v"), "template_vars"
    for name in ("messages", "tools", "bos_token"):
        yield with_variable(name, "v"), f'template_vars["{name}"]'
    yield with_variable("enable_thinking", "v", enable_thinking=True), 'template_vars["enable_thinking"]'
    yield pb.ChatInput(messages=[user], template_vars={"empty": Value()}), 'template_vars["empty"]'
    endless = pb.ChatInput(messages=[user])
    endless.template_vars["endless"].number_value = math.inf
    yield endless, 'template_vars["endless"]'
    many = pb.ChatInput(messages=[user])
    for index in range(65):
        many.template_vars[f"v{index}"].bool_value = True
    yield many, "template_vars"


def with_variable(name: str, value: str, **fields: Any) -> pb.ChatInput:
    chat = pb.ChatInput(messages=[said(pb.ROLE_USER)], **fields)
    chat.template_vars[name].string_value = value
    return chat


@pytest.mark.parametrize(("chat", "path"), list(bad_chats()))
def test_a_bad_chat_is_refused_by_its_field(chat: pb.ChatInput, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(chat=chat))
    assert raised.value.field == f"spec.chat.{path}"


def test_a_role_of_the_future_is_unsupported() -> None:
    message = pb.ChatMessage.FromString(b"\x08\x63")
    with pytest.raises(UnsupportedOption) as raised:
        generation(pb.GenerationSpec(chat=pb.ChatInput(messages=[message])))
    assert raised.value.field == "spec.chat.messages[0].role"


@pytest.mark.parametrize(
    ("variables", "path"),
    [({"enable_thinking": True}, "spec.chat.enable_thinking"), ({"mood": 1}, 'spec.chat.template_vars["mood"]')],
)
def test_a_variable_that_the_template_does_not_read_is_unsupported(variables: dict[str, Any], path: str) -> None:
    chat = ChatPrompt("spec.chat", ({"role": "user", "content": "x"},), variables)
    check_variables(chat, frozenset(variables))
    with pytest.raises(UnsupportedOption) as raised:
        check_variables(chat, frozenset({"other"}))
    assert raised.value.field == path


def test_a_count_takes_text_and_chat() -> None:
    counted = read(base(pb.CountTokensRequest, prompt="ab", return_token_ids=True))
    assert isinstance(counted, Count)
    assert (counted.prompt, counted.return_token_ids) == (TextPrompt("prompt", "ab"), True)
