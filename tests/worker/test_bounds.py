"""Every list, text and run of bytes that a request can hold has a bound: beyond it the request is refused by the field.

What has its bound behind the reading is listed with the place of the bound; a field that is new has to be decided on.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from pomona.v1 import embedding_pb2, generation_pb2, transcription_pb2

from tests.worker.embedding.test_reading import EMBEDDER
from tests.worker.fields import field_paths, named
from tests.worker.specs import MODEL
from tests.worker.speech.test_reading import FACTS
from worker.embedding.reading import read_embed, read_rerank
from worker.errors import RequestError
from worker.speech.asking import read_opening, read_recording
from worker.validation import read_count, read_generation

TEXT = "x" * (4 << 20)
ELEMENTS = 25_000  # below what is looked at of a body in all: the field has a bound of its own

READERS: Mapping[type[Any], Callable[[bytes], object]] = {
    generation_pb2.GenerateRequest: lambda body: read_generation(body, generation_pb2.GenerateRequest, MODEL),
    generation_pb2.StreamGenerateRequest: lambda body: read_generation(
        body, generation_pb2.StreamGenerateRequest, MODEL
    ),
    generation_pb2.CountTokensRequest: read_count,
    embedding_pb2.EmbedRequest: lambda body: read_embed(body, EMBEDDER, 4, 10),
    embedding_pb2.RerankRequest: lambda body: read_rerank(body, 4),
    transcription_pb2.TranscribeRequest: lambda body: read_recording(body, transcription_pb2.TranscribeRequest, FACTS),
    transcription_pb2.StreamTranscribeRecordingRequest: lambda body: read_recording(
        body, transcription_pb2.StreamTranscribeRecordingRequest, FACTS
    ),
    transcription_pb2.StreamTranscribeRequest: lambda body: read_opening(body, FACTS),
}
BASES: Mapping[type[Any], Mapping[str, Any]] = {
    embedding_pb2.EmbedRequest: {"inputs": [{"text": "hello"}]},
    embedding_pb2.RerankRequest: {"query": "q", "documents": ["d"]},
}
# Fields whose bound is behind the reading, and where.
ELSEWHERE: Mapping[str, str] = {
    "model": "the edge refuses one that is not the worker's own",
    "spec.prompt": "the context, before all of it is tokenized",
    "prompt": "the same",
    "spec.chat.messages.text": "the same, once the template is rendered",
    "chat.messages.text": "the same",
    "spec.chat.messages.parts.text": "the same",
    "chat.messages.parts.text": "the same",
    "spec.chat.messages.reasoning": "the same",
    "chat.messages.reasoning": "the same",
    "inputs.text": "the context, and MAX_TEXT_BYTES of what may be cut",
    "query": "the same",
    "audio": "max_audio_bytes and max_audio_s, while it is decoded",
}
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "tool_calls": {"id": "c", "name": "f", "arguments_json": "{}"},
    "tools": {"name": "f"},
}
ROLES: Mapping[str, Any] = {
    "tool_calls": generation_pb2.ROLE_ASSISTANT,
    "reasoning": generation_pb2.ROLE_ASSISTANT,
    "tool_call_id": generation_pb2.ROLE_TOOL,
}


def sized_fields() -> Iterator[Any]:
    for kind in READERS:
        for path in field_paths(kind.DESCRIPTOR):
            field = path[-1]
            if kind is transcription_pb2.StreamTranscribeRequest and field.name == "audio":
                continue  # is no first message; the others are looked at one by one
            if field.is_repeated or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                yield pytest.param(kind, path, id=f"{kind.DESCRIPTOR.name}.{named(path)}")


@pytest.mark.parametrize(("kind", "path"), list(sized_fields()))
def test_what_can_grow_has_a_bound(kind: type[Any], path: tuple[FieldDescriptor, ...]) -> None:
    message = kind(model="m", request_id="r", **BASES.get(kind, {}))
    give_input(message, path)
    fill(message, path)
    body = message.SerializeToString()
    if named(path) in ELSEWHERE:
        READERS[kind](body)
        return
    with pytest.raises(RequestError) as caught:
        READERS[kind](body)
    told = re.sub(r"\[[^\]]*\]", "", str(caught.value).partition(":")[0])
    assert f"{named(path)}.".startswith(f"{told}.") or told.startswith(f"{named(path)}.")


def give_input(message: Any, path: tuple[FieldDescriptor, ...]) -> None:
    """Put in what the request needs beside the field, so that it is the field for which it is refused."""
    names = [field.name for field in path]
    if "chat" in names:
        chat = message.spec.chat if hasattr(message, "spec") else message.chat
        role = next((ROLES[name] for name in names if name in ROLES), generation_pb2.ROLE_USER)
        chat.messages.add(role=role)
        if "tool_choice" in names:
            chat.tool_choice.mode = generation_pb2.ToolChoice.MODE_NAMED
    elif hasattr(message, "spec") and message.spec.WhichOneof("input") is None:
        message.spec.prompt = "hello"
    elif hasattr(message, "prompt"):
        message.prompt = "hello"
    elif isinstance(message, transcription_pb2.StreamTranscribeRequest):
        message.config.SetInParent()


def fill(message: Any, path: tuple[FieldDescriptor, ...]) -> None:
    """Put more into the field at the end of a path than anybody needs."""
    for field in path[:-1]:
        inner = getattr(message, field.name)
        message = (inner[0] if len(inner) else inner.add(**BESIDE.get(field.name, {}))) if field.is_repeated else inner
    field = path[-1]
    large = TEXT.encode() if field.type == FieldDescriptor.TYPE_BYTES else TEXT
    if not field.is_repeated:
        setattr(message, field.name, large)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        for number in range(ELEMENTS):
            add_entry(getattr(message, field.name), field.message_type, number)
    elif field.message_type is not None:
        for _ in range(ELEMENTS):
            getattr(message, field.name).add()
    else:
        element: Any = "x" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else 1
        getattr(message, field.name).extend([element] * ELEMENTS)


def add_entry(entries: Any, kind: Any, number: int) -> None:
    is_text = kind.fields_by_name["key"].cpp_type == FieldDescriptor.CPPTYPE_STRING
    key = f"k{number}" if is_text else number
    if kind.fields_by_name["value"].message_type is not None:
        entries[key].bool_value = True
    else:
        entries[key] = 0.5
