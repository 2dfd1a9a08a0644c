"""The client for programs without an event loop, against a server that follows a script."""

import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pomona
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from pomona.v1 import embedding_pb2, model_pb2
from pomona.v1 import generation_pb2 as g
from pomona.v1 import transcription_pb2 as t

from tests.support.scripted_server import Fail, Hold, ScriptedServer, answer, delta


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[pomona.Client]:
    with pomona.connect(server.address, token="secret", timeout_s=20) as connected:
        yield connected


def test_iterating_gives_the_text(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamGenerate"] = answer("The ", "sky.")
    assert list(client.generate("smol", "Why?", max_tokens=7)) == ["The ", "sky."]
    call = server.call("StreamGenerate")
    assert (call.request.model, call.request.spec.prompt, call.request.spec.stopping.max_tokens) == ("smol", "Why?", 7)
    assert call.metadata["authorization"] == "Bearer secret"


def test_text_is_the_content_of_the_first_sequence(server: ScriptedServer, client: pomona.Client) -> None:
    thought = g.StreamGenerateResponse(delta=g.TokenDelta(text="Hm.", channel=g.CHANNEL_REASONING))
    second = g.StreamGenerateResponse(delta=g.TokenDelta(text="No.", channel=g.CHANNEL_CONTENT, sequence_index=1))
    server.scripts["StreamGenerate"] = [thought, delta("Yes."), second]
    reply = client.chat("smol", "Well?")
    assert list(reply) == ["Yes."]
    assert (reply.written.reasoning, reply.written.sequences[1].text) == ("Hm.", "No.")


def test_events_are_the_contracts_messages(server: ScriptedServer, client: pomona.Client) -> None:
    unknown = g.StreamGenerateResponse(event_number=9)
    server.scripts["StreamGenerate"] = [*answer("Hi"), unknown]
    kinds = [type(event) for event in client.chat("smol", "Hello").events()]
    assert kinds == [g.GenerationStarted, g.TokenDelta, g.SequenceFinished, g.GenerationCompleted]


def test_a_result_is_the_whole(server: ScriptedServer, client: pomona.Client) -> None:
    pieces = [g.ToolCallDelta(call_index=0, id="c1", name="weather", arguments_json_delta='{"city"')]
    pieces.append(g.ToolCallDelta(call_index=0, arguments_json_delta=': "Rome"}'))
    events = answer("Hi")
    events[2:2] = [g.StreamGenerateResponse(tool_call=piece) for piece in pieces]
    server.scripts["StreamGenerate"] = events
    written = client.chat("smol", "Hello").result()
    assert written.text == "Hi"
    assert written.tool_calls == [g.ToolCall(id="c1", name="weather", arguments_json='{"city": "Rome"}')]
    assert written.started
    assert written.usage
    assert written.finish
    assert (written.started.request_id, written.usage.completion_tokens) == ("r1", 1)
    assert written.finish.reason == g.FINISH_REASON_EOS


@pytest.mark.parametrize("way", ["loop", "with", "client"])
def test_leaving_early_cancels(server: ScriptedServer, client: pomona.Client, way: str) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    reply = client.generate("smol", "x")
    texts = iter(reply)
    assert next(texts) == "a"
    leave = {"loop": texts.close, "with": lambda: reply.__exit__(None, None, None), "client": client.close}[way]
    leave()
    assert server.call("StreamGenerate").is_ended_by_client.wait(5)


def test_a_cancelled_answer_says_so(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    reply = client.generate("smol", "x")
    texts = iter(reply)
    next(texts)
    reply.cancel()
    with pytest.raises(pomona.PomonaError) as caught:
        next(texts)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.CANCELLED, "")


def test_a_failure_brings_reason_values_and_delay(server: ScriptedServer, client: pomona.Client) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000))
    server.scripts["StreamGenerate"] = [
        delta("a"),
        Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many.", "QUEUE_FULL", {"depth": "64"}, (retry,)),
    ]
    with pytest.raises(pomona.PomonaError) as caught:
        client.generate("smol", "x").result()
    error = caught.value
    assert (error.code, error.reason, error.metadata) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        {"depth": "64"},
    )
    assert (error.message, error.retry_delay_s, error.violations, error.usage) == ("Too many.", 2.5, {}, None)
    assert str(error) == "RESOURCE_EXHAUSTED QUEUE_FULL: Too many."


def test_a_refused_field_is_named(server: ScriptedServer, client: pomona.Client) -> None:
    wrong = error_details_pb2.BadRequest()
    wrong.field_violations.add(field="model", description="too long")
    server.scripts["GetModel"] = [Fail(grpc.StatusCode.INVALID_ARGUMENT, "No.", "INVALID_FIELD", details=(wrong,))]
    with pytest.raises(pomona.PomonaError) as caught:
        client.model("smol")
    assert caught.value.violations == {"model": "too long"}


def test_a_deadline_is_of_the_client_or_of_the_call(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = [Hold()]
    with pomona.connect(server.address, timeout_s=0.05) as client:
        with pytest.raises(pomona.PomonaError) as caught:
            client.generate("smol", "x").result()
        assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    with pomona.connect(server.address) as client, pytest.raises(pomona.PomonaError) as caught:
        client.generate("smol", "x", timeout_s=0.05).result()
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with pomona.connect(f"unix:{tmp_path}/none", timeout_s=5) as client, pytest.raises(pomona.PomonaError) as caught:
        client.models()
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "")


def test_vectors_are_floats(server: ScriptedServer, client: pomona.Client) -> None:
    values = [struct.pack("<2f", 0.5, -1.0), struct.pack("<2f", 0.0, 2.0)]
    embeddings = [embedding_pb2.Embedding(values=each, vector_count=1) for each in values]
    server.scripts["Embed"] = [embedding_pb2.EmbedResponse(embeddings=embeddings, dimensions=2)]
    assert client.embed("e", ["a", "b"], dimensions=2, task_type="retrieval_query") == [[0.5, -1.0], [0.0, 2.0]]
    options = server.call("Embed").request.options
    assert (options.dimensions, options.task_type) == (2, embedding_pb2.TASK_TYPE_RETRIEVAL_QUERY)
    assert options.vector_type == embedding_pb2.VECTOR_TYPE_FLOAT32_LE


def test_rankings_come_as_they_are(server: ScriptedServer, client: pomona.Client) -> None:
    ranking = embedding_pb2.Ranking(document_index=1, score=0.5)
    server.scripts["Rerank"] = [embedding_pb2.RerankResponse(rankings=[ranking])]
    assert client.rerank("r", "q", ["a", "b"], top_n=1) == [ranking]
    assert list(server.call("Rerank").request.documents) == ["a", "b"]


def test_all_pages_of_models_come(server: ScriptedServer, client: pomona.Client) -> None:
    def page(request: model_pb2.ListModelsRequest) -> list[model_pb2.ListModelsResponse]:
        name = request.page_token or "first"
        return [model_pb2.ListModelsResponse(models=[model_pb2.Model(model=name)], next_page_token=_NEXT[name])]

    server.scripts["ListModels"] = page
    assert [model.model for model in client.models()] == ["first", "second", "third"]


_NEXT = {"first": "second", "second": "third", "third": ""}


def test_models_are_loaded_counted_with_and_unloaded(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["LoadModel"] = [model_pb2.LoadModelResponse(model=model_pb2.Model(model="smol", pinned=True))]
    server.scripts["UnloadModel"] = [model_pb2.UnloadModelResponse(model=model_pb2.Model(model="smol"))]
    server.scripts["CountTokens"] = [g.CountTokensResponse(token_count=3)]
    assert client.load("smol").pinned
    assert client.count_tokens("smol", [{"role": "user", "text": "Hi"}]) == 3
    assert client.unload("smol", timeout_s=5).model == "smol"


def test_a_stub_of_the_contract_reaches_the_rest(server: ScriptedServer, client: pomona.Client) -> None:
    from pomona.v1 import server_pb2, server_pb2_grpc

    server.scripts["GetServerInfo"] = [server_pb2.GetServerInfoResponse(version="1")]
    stub = client.stub(server_pb2_grpc.ServerServiceStub)
    told = stub.GetServerInfo(server_pb2.GetServerInfoRequest(), metadata=client.metadata, timeout=5)
    assert told.version == "1"
    assert server.call("GetServerInfo").metadata["authorization"] == "Bearer secret"


def heard(*texts: str) -> list[t.StreamTranscribeResponse]:
    """Return the events of a whole transcript, the first segment with text that changed before."""
    segments = [t.Segment(segment_id=each, final=True, stable_text=text) for each, text in enumerate(texts)]
    events = [t.TranscriptionEvent(ready=t.TranscriptionReady(preferred_chunk_bytes=4))]
    events.append(t.TranscriptionEvent(segment=t.Segment(stable_text="", unstable_text="Helo")))
    events += [t.TranscriptionEvent(segment=segment) for segment in segments]
    events.append(t.TranscriptionEvent(completed=t.TranscriptionCompleted(text="".join(texts), language_code="en")))
    return [t.StreamTranscribeResponse(event=event) for event in events]


class Listener:
    """A script that takes all audio between `ready` and what was heard."""

    def __init__(self, *texts: str) -> None:
        self.events = heard(*texts)
        self.received: list[t.StreamTranscribeRequest] = []

    def __call__(self, sent: Iterator[t.StreamTranscribeRequest]) -> Iterator[t.StreamTranscribeResponse]:
        self.received.append(next(sent))
        yield self.events[0]
        self.received += sent
        yield from self.events[1:]

    @property
    def chunks(self) -> list[bytes]:
        return [each.audio for each in self.received[1:]]


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "chunks"])
def test_audio_is_a_file_bytes_or_what_comes(
    server: ScriptedServer, client: pomona.Client, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(b"abcdefghij")
    audio = {"path": file, "text": str(file), "bytes": b"abcdefghij", "chunks": iter([b"abcdefg", b"hij"])}[kind]
    listener = server.scripts["StreamTranscribe"] = Listener("Hello ", "there.")
    assert list(client.transcribe("w", audio, languages=["en"])) == ["Hello ", "there."]
    assert listener.chunks == ([b"abcdefg", b"hij"] if kind == "chunks" else [b"abcd", b"efgh", b"ij"])
    assert listener.received[0].config.transcription.languages == ["en"]


def test_a_transcript_is_put_together(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamTranscribe"] = Listener("Hello ", "there.")
    found = client.transcribe("w", b"abc").result()
    assert (found.text, found.language_code, found.interim) == ("Hello there.", "en", None)
    assert [segment.segment_id for segment in found.segments] == [0, 1]


def test_audio_that_cannot_be_read_fails_as_such_and_ends_the_call(
    server: ScriptedServer, client: pomona.Client, tmp_path: Path
) -> None:
    server.scripts["StreamTranscribe"] = Listener("Hello")
    with pytest.raises(FileNotFoundError):
        client.transcribe("w", tmp_path / "none.wav").result()
    assert server.call("StreamTranscribe").is_ended_by_client.wait(5)


def test_a_transcript_that_nobody_reads_ends_with_its_deadline(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamTranscribe"] = [*heard()[:1], Hold()]
    transcript = client.transcribe("w", b"abc", timeout_s=0.2)
    assert transcript._may_send.wait(5)
    with pytest.raises(pomona.PomonaError) as caught:
        transcript.result()
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
