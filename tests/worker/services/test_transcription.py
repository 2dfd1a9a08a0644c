"""The TranscriptionService of a worker with a tiny random Whisper, whose windows are 0.4 seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import server_pb2, worker_pb2
from pomona.v1 import transcription_pb2 as pb

from tests.support.tiny_whisper import write_mlx
from tests.support.worker_client import Refusal, WorkerClient, client_of, refusal_of, stamps
from tests.support.worker_client import rest_of as read_all
from tests.support.worker_process import MODEL, WorkerProcess
from tests.worker.audio.clips import wav
from tests.worker.speech.driving import noise, s16

from .calls import eventually_listed, listed

SERVICE = "/pomona.v1.TranscriptionService/"
PCM = pb.AudioFormat(pcm=pb.RawPcm(encoding=pb.RawPcm.ENCODING_S16_LE, sample_rate_hz=16_000, channel_count=1))
RAW = pb.TranscriptionConfig(format=PCM, voice_activity_filter=False, temperature=0, languages=["en"])
Config = pb.StreamTranscriptionConfig
TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 1200


def raw(seconds: float) -> bytes:
    return s16(noise(seconds))


class Speaker:
    """Calls the service as the gateway does."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client

    async def transcribe(self, audio: bytes, config: pb.TranscriptionConfig = RAW, **fields: Any) -> Any:
        request = pb.TranscribeRequest(**self.envelope(fields), config=config, audio=audio)
        make = self.client.channel.unary_unary(
            f"{SERVICE}Transcribe", response_deserializer=pb.TranscribeResponse.FromString
        )
        return await make(request.SerializeToString(), metadata=self.metadata(request), timeout=TIMEOUT_S)

    def recording(self, audio: bytes, config: pb.TranscriptionConfig = RAW, **fields: Any) -> Any:
        request = pb.StreamTranscribeRecordingRequest(**self.envelope(fields), config=config, audio=audio)
        make = self.client.channel.unary_stream(
            f"{SERVICE}StreamTranscribeRecording",
            response_deserializer=pb.StreamTranscribeRecordingResponse.FromString,
        )
        return make(request.SerializeToString(), metadata=self.metadata(request), timeout=TIMEOUT_S)

    async def stream(self, config: Config | None = None, **fields: Any) -> Any:
        """Open a stream with its config."""
        first = pb.StreamTranscribeRequest(**self.envelope(fields), config=config or Config(transcription=RAW))
        return await self.opened(first)

    async def opened(self, first: pb.StreamTranscribeRequest) -> Any:
        """Open a stream with a message."""
        call = self.client.channel.stream_stream(
            f"{SERVICE}StreamTranscribe",
            request_serializer=pb.StreamTranscribeRequest.SerializeToString,
            response_deserializer=pb.StreamTranscribeResponse.FromString,
        )(metadata=self.metadata(first), timeout=TIMEOUT_S)
        await call.write(first)
        return call

    def envelope(self, fields: Any) -> dict[str, Any]:
        return {"model": MODEL, "request_id": "r", **fields}

    def metadata(self, request: Any) -> Any:
        return self.client.worker.metadata(stamps(request))


async def events_of(call: Any) -> list[pb.TranscriptionEvent]:
    return [message.event for message in await read_all(call)]


async def rest_of(call: Any) -> list[pb.TranscriptionEvent]:
    """Half-close a stream, and return all that comes."""
    await call.done_writing()
    return await events_of(call)


async def refusal(waiting: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await waiting
    return refusal_of(raised.value)


async def refused_stream(call: Any) -> Refusal:
    return await refusal(events_of(call))


@pytest.fixture(scope="module")
def hearing_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_mlx(tmp_path_factory.mktemp("checkpoint") / "tiny")
    process = WorkerProcess(folder, max_response_bytes=MAX_RESPONSE_BYTES, max_audio_s=60.0, max_audio_bytes=1 << 21)
    yield process
    process.end()


@pytest.fixture
async def speaker(hearing_worker: WorkerProcess) -> AsyncIterator[Speaker]:
    async with client_of(hearing_worker) as connected:
        await connected.is_active()
        yield Speaker(connected)
        async with asyncio.timeout(10):
            while await listed(connected):
                pass


async def test_all_three_ways_tell_the_same(speaker: Speaker):
    audio = wav(raw(2.1))
    config = pb.TranscriptionConfig(
        voice_activity_filter=False, temperature=0, languages=["de", "en"], word_timestamps=True
    )
    answer = await speaker.transcribe(audio, config)
    recorded = await events_of(speaker.recording(audio, config))
    call = await speaker.stream(Config(transcription=config))
    for start in range(0, len(audio), 10_001):
        await call.write(pb.StreamTranscribeRequest(audio=audio[start : start + 10_001]))
    streamed = await rest_of(call)

    segments = [event.segment for event in recorded if event.HasField("segment")]
    assert segments
    assert list(answer.segments) == segments
    assert [event.segment for event in streamed if event.HasField("segment")] == segments
    assert answer.text == recorded[-1].completed.text == streamed[-1].completed.text
    assert answer.text == "".join(segment.stable_text for segment in segments)
    assert answer.language_code == recorded[-1].completed.language_code in {"de", "en"}
    assert answer.usage.audio_duration == streamed[-1].completed.usage.audio_duration
    assert answer.usage.decoded_tokens == streamed[-1].completed.usage.decoded_tokens > 0
    assert (answer.request_id, answer.resolved_model.model) == ("r", MODEL)


async def test_events_are_numbered_with_ready_first_and_completed_last(speaker: Speaker):
    call = await speaker.stream()
    ready = (await call.read()).event
    assert (ready.event_number, ready.ready.request_id, ready.ready.resolved_model.model) == (0, "r", MODEL)
    assert ready.ready.preferred_chunk_bytes > 0
    await call.write(pb.StreamTranscribeRequest(audio=raw(2)))
    events = await rest_of(call)
    assert [event.event_number for event in events] == list(range(1, len(events) + 1))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-1] == "completed"
    assert (kinds.count("ready"), kinds.count("completed")) == (0, 1)
    assert "language" not in kinds, "it was asked for"


async def test_silence_that_is_skipped_moves_the_clock(speaker: Speaker):
    call = await speaker.stream()
    await call.write(pb.StreamTranscribeRequest(skip=Duration(seconds=3)))
    await call.write(pb.StreamTranscribeRequest(audio=raw(1)))
    events = await rest_of(call)
    assert events[-1].completed.usage.audio_duration.seconds == 4


async def test_a_stream_without_audio_completes(speaker: Speaker):
    events = await rest_of(await speaker.stream())
    assert events[-1].completed.text == ""
    assert events[-1].completed.language_code == "en"


@pytest.mark.parametrize(
    "audio", [b"", b"RIFF", b"nonsense" * 1000, wav(raw(1))[:40]], ids=["nothing", "four bytes", "nonsense", "a header"]
)
async def test_what_is_no_audio_is_refused(speaker: Speaker, audio: bytes):
    found = await refusal(speaker.transcribe(audio, pb.TranscriptionConfig()))
    assert (found.code, found.reason, found.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "AUDIO_UNDECODABLE",
        "audio",
    )
    call = await speaker.stream(Config())
    await call.write(pb.StreamTranscribeRequest(audio=audio))
    await call.done_writing()
    assert (await refused_stream(call)).reason == "AUDIO_UNDECODABLE"


async def test_audio_over_its_limits_is_refused(speaker: Speaker):
    call = await speaker.stream()
    await call.write(pb.StreamTranscribeRequest(skip=Duration(seconds=61)))
    found = await refused_stream(call)
    assert (found.reason, found.metadata["max_audio_s"]) == ("AUDIO_TOO_LONG", "60.0")
    form = pb.RawPcm(encoding=pb.RawPcm.ENCODING_F32_LE, sample_rate_hz=48_000, channel_count=8)
    found = await refusal(
        speaker.transcribe(bytes((1 << 21) + 2), pb.TranscriptionConfig(format=pb.AudioFormat(pcm=form)))
    )
    assert (found.reason, found.metadata["max_bytes"]) == ("AUDIO_TOO_LARGE", str(1 << 21))


@pytest.mark.parametrize(
    "message",
    [
        pb.StreamTranscribeRequest(config=Config()),
        pb.StreamTranscribeRequest(audio=b"x", model=MODEL),
        pb.StreamTranscribeRequest(audio=b"x", request_id="r"),
    ],
    ids=["two configs", "a model", "an id"],
)
async def test_messages_in_the_wrong_order_end_a_stream(speaker: Speaker, message: pb.StreamTranscribeRequest):
    call = await speaker.stream()
    await call.write(message)
    found = await refused_stream(call)
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "STREAM_ORDER")


async def test_audio_before_the_config_is_refused(speaker: Speaker):
    call = await speaker.opened(pb.StreamTranscribeRequest(model=MODEL, request_id="r", audio=b"x"))
    assert (await refused_stream(call)).reason == "STREAM_ORDER"


async def test_a_message_that_is_too_large_is_refused_by_name(speaker: Speaker):
    call = await speaker.stream()
    await call.write(pb.StreamTranscribeRequest(audio=bytes((1 << 20) + 1)))
    found = await refused_stream(call)
    assert (found.reason, found.field) == ("INVALID_FIELD", "audio")


async def test_a_stream_that_sends_nothing_ends(speaker: Speaker):
    call = await speaker.stream(Config(transcription=RAW, idle_timeout=Duration(nanos=200_000_000)))
    found = await refused_stream(call)
    assert (found.code, found.reason) == (grpc.StatusCode.ABORTED, "STREAM_IDLE")
    assert found.metadata == {"idle_s": "0.2"}


async def test_what_the_model_cannot_do_is_refused_before_audio(speaker: Speaker):
    config = pb.TranscriptionConfig(format=PCM, languages=["tlh"])
    found = await refusal(speaker.transcribe(b"", config))
    assert (found.reason, found.field) == ("INVALID_FIELD", "config.languages[0]")
    found = await refused_stream(await speaker.stream(Config(transcription=config)))
    assert found.field == "config.transcription.languages[0]"


async def test_a_body_that_says_something_else_than_the_gateway_read_is_refused(speaker: Speaker):
    request = pb.TranscribeRequest(model=MODEL, request_id="r")
    make = speaker.client.channel.unary_unary(f"{SERVICE}Transcribe")
    stamped = {**stamps(request), "request_id": "other"}
    found = await refusal(make(request.SerializeToString(), metadata=speaker.client.worker.metadata(stamped)))
    assert found.reason == "MALFORMED_REQUEST"


async def test_an_answer_over_its_limit_is_refused(speaker: Speaker):
    config = pb.TranscriptionConfig()
    config.CopyFrom(RAW)
    config.word_timestamps = True
    found = await refusal(speaker.transcribe(raw(9), config))
    assert (found.reason, found.metadata["max_response_bytes"]) == ("RESPONSE_TOO_LARGE", str(MAX_RESPONSE_BYTES))


async def test_an_operator_ends_a_stream_and_its_caller_learns_why(speaker: Speaker):
    call = await speaker.stream(request_id="ended")
    await call.read()
    await call.write(pb.StreamTranscribeRequest(audio=raw(5)))
    await eventually_listed(speaker.client, "ended", server_pb2.RequestInfo.STATE_DECODING)
    request = worker_pb2.CancelWorkerRequestRequest(request_id="ended")
    assert (await speaker.client.gateway.CancelWorkerRequest(request, metadata=speaker.client.worker.metadata())).found
    found = await refused_stream(call)
    assert (found.code, found.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_OPERATOR")


async def test_a_deadline_ends_a_stream(speaker: Speaker):
    request = pb.StreamTranscribeRequest(model=MODEL, request_id="r", config=Config(transcription=RAW))
    call = speaker.client.channel.stream_stream(f"{SERVICE}StreamTranscribe")(
        metadata=speaker.metadata(request), timeout=0.3
    )
    await call.write(request.SerializeToString())
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_worker_that_ends_tells_its_streams_and_lets_them_finish(tmp_path_factory: pytest.TempPathFactory):
    worker = WorkerProcess(write_mlx(tmp_path_factory.mktemp("checkpoint") / "tiny"))
    try:
        async with client_of(worker) as client:
            await client.is_active()
            speaker = Speaker(client)
            finishing, staying = await speaker.stream(request_id="a"), await speaker.stream(request_id="b")
            for call in (finishing, staying):
                await call.read()
            grace = worker_pb2.ShutdownRequest(grace=Duration(seconds=1))
            ending = asyncio.ensure_future(client.gateway.Shutdown(grace, metadata=worker.metadata()))
            for call in (finishing, staying):
                told = (await call.read()).event
                assert (told.event_number, told.WhichOneof("event")) == (1, "ending")
                assert 0 < told.ending.remaining.ToMilliseconds() <= 1000
            await finishing.write(pb.StreamTranscribeRequest(audio=raw(1)))
            events = await rest_of(finishing)
            assert events[-1].HasField("completed")
            found = await refused_stream(staying)
            assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING")
            assert (await ending).aborted_requests == 1
    finally:
        worker.end()


async def test_no_template_is_rendered_by_what_hears(speaker: Speaker, hearing_worker: WorkerProcess):
    await speaker.transcribe(raw(0.4))
    assert hearing_worker.children() == []


async def test_what_it_heard_is_told_with_the_heartbeat(speaker: Speaker):
    before = (await speaker.client.is_active()).stats.audio_us_total
    await speaker.transcribe(raw(1.5))
    report = await speaker.client.is_active()
    assert report.stats.audio_us_total - before == 1_500_000
    assert [each.name for each in report.stats.durations] == ["queue", "time_to_first_segment"]
