"""Whisper base through gateway and worker: the same text by every way, side by side and alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from pomona.v1 import model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc, transcription_pb2_grpc
from pomona.v1 import transcription_pb2 as pb

from tests.support.served import Served, demo_checkpoint, served
from tests.support.whisper_base import whisper_base_path

pytestmark = pytest.mark.real

RECORDINGS = Path(__file__).parents[1] / "models" / "whisper" / "recordings"
TEXTS = {
    "austen_0880": "He was not an ill-disposed young man.",
    "austen_0890": "Unless to be rather cold-hearted and rather selfish is to be ill-disposed.",
    "goforward": "Go forward 10 meters.",
}
PCM = pb.AudioFormat(pcm=pb.RawPcm(encoding=pb.RawPcm.ENCODING_S16_LE, sample_rate_hz=16_000, channel_count=1))
TIMEOUT_S = 50.0


def recording(name: str) -> bytes:
    return (RECORDINGS / f"{name}.wav").read_bytes()


def samples(name: str) -> bytes:
    """Return a recording's 16-bit samples."""
    return recording(name)[44:]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--model", f"whisper={whisper_base_path()}", "--model", f"text={demo_checkpoint()}") as running:
        yield running


class Caller:
    """A client of the server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.speech: Any = transcription_pb2_grpc.TranscriptionServiceStub(channel)
        self.models: Any = model_pb2_grpc.ModelServiceStub(channel)
        self.admin: Any = server_pb2_grpc.AdminServiceStub(channel)
        self._count = 0

    async def transcribe(self, audio: bytes, **config: Any) -> Any:
        request = pb.TranscribeRequest(**self.envelope(), config=pb.TranscriptionConfig(**config), audio=audio)
        return await self.speech.Transcribe(request, timeout=TIMEOUT_S)

    async def record(self, audio: bytes, **config: Any) -> list[Any]:
        return [message.event async for message in self.recording(audio, **config)]

    def recording(self, audio: bytes, **config: Any) -> Any:
        request = pb.StreamTranscribeRecordingRequest(
            **self.envelope(), config=pb.TranscriptionConfig(**config), audio=audio
        )
        return self.speech.StreamTranscribeRecording(request, timeout=TIMEOUT_S)

    async def stream(self, audio: bytes, chunk_bytes: int = 8_000, **config: Any) -> list[Any]:
        async def messages() -> Any:
            yield pb.StreamTranscribeRequest(**self.envelope(), config=pb.StreamTranscriptionConfig(**config))
            for start in range(0, len(audio), chunk_bytes):
                yield pb.StreamTranscribeRequest(audio=audio[start : start + chunk_bytes])

        return [message.event async for message in self.speech.StreamTranscribe(messages(), timeout=TIMEOUT_S)]

    async def requests(self) -> list[Any]:
        return list((await self.admin.ListRequests(server_pb2.ListRequestsRequest())).requests)

    def envelope(self) -> dict[str, Any]:
        self._count += 1
        return {"model": "whisper", "request_id": f"r{self._count}"}


@pytest.fixture
async def caller(server: Served) -> Any:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Caller(channel)


async def test_a_recording_says_the_same_by_every_way(caller: Caller):
    audio = recording("austen_0880")
    answer, recorded, streamed = await asyncio.gather(
        caller.transcribe(audio, word_timestamps=True), caller.record(audio), caller.stream(audio)
    )
    assert answer.text == recorded[-1].completed.text == streamed[-1].completed.text == TEXTS["austen_0880"]
    assert answer.language_code == recorded[-1].completed.language_code == "en"
    assert "".join(word.text for segment in answer.segments for word in segment.words) == answer.text
    assert [event.event_number for event in streamed] == list(range(len(streamed)))
    found = [event.language for event in streamed if event.HasField("language")]
    assert [each.language_code for each in found] == ["en"]


async def test_recordings_side_by_side_say_what_each_says(caller: Caller):
    names = ["goforward", "austen_0880"]
    answers = await asyncio.gather(*(caller.transcribe(recording(name), beam_size=1) for name in names))
    assert [answer.text for answer in answers] == [TEXTS[name] for name in names]


async def test_what_is_not_said_to_be_greedy_is_heard_with_beams(caller: Caller):
    """Of this recording both write the same words, but not the same marks."""
    wanted = ({}, {"beam_size": 1})
    beams, greedy = [(await caller.transcribe(recording("austen_0890"), languages=["en"], **each)) for each in wanted]
    assert beams.text != greedy.text == TEXTS["austen_0890"]
    assert beams.text.replace(",", "") == greedy.text
    assert beams.usage.decoded_tokens > 1.9 * greedy.usage.decoded_tokens


async def test_a_short_clip_is_answered_while_a_long_recording_runs(caller: Caller):
    long = samples("austen_0890") * 24
    call = caller.recording(long, format=PCM, languages=["en"])
    async with asyncio.timeout(20):
        while [each.state for each in await caller.requests()] != [server_pb2.RequestInfo.STATE_DECODING]:
            pass
    answer = await caller.transcribe(recording("goforward"))
    assert answer.text == TEXTS["goforward"]
    assert len(await caller.requests()) == 1
    call.cancel()
    async with asyncio.timeout(10):
        while await caller.requests():
            pass


@pytest.mark.parametrize(
    "sound",
    [
        lambda: np.zeros(0),
        lambda: np.random.default_rng(0).normal(0, 0.1, 800),
        lambda: np.zeros(16_000 * 40),
        lambda: np.random.default_rng(0).normal(0, 0.1, 16_000 * 5),
        lambda: 0.3 * np.sin(2 * np.pi * 440 * np.arange(16_000 * 5) / 16_000),
    ],
    ids=["nothing", "50 ms", "silence", "noise", "a tone"],
)
async def test_what_nobody_said_is_not_told(caller: Caller, sound: Callable[[], Any]):
    audio = (sound() * 32_767).astype("<i2").tobytes()
    answer = await caller.transcribe(audio, format=PCM)
    assert (answer.text, len(answer.segments)) == ("", 0)
    assert answer.usage.audio_duration.ToMilliseconds() == len(audio) // 32


async def test_one_sample_without_measure_does_not_silence_a_recording(caller: Caller):
    floats = (np.frombuffer(samples("goforward"), "<i2") / 32768).astype("<f4")
    floats[0] = 3e38
    pcm = pb.RawPcm(encoding=pb.RawPcm.ENCODING_F32_LE, sample_rate_hz=16_000, channel_count=1)
    answer = await caller.transcribe(floats.tobytes(), format=pb.AudioFormat(pcm=pcm), languages=["en"])
    assert answer.text == TEXTS["goforward"]


async def test_a_minute_without_any_sound_says_nothing_though_nobody_looks_for_speech(caller: Caller):
    answer = await caller.transcribe(bytes(60 * 32_000), format=PCM, languages=["en"], voice_activity_filter=False)
    assert (answer.text, answer.usage.decoded_tokens) == ("", 0)


async def test_other_texts_are_others(caller: Caller):
    answer = await caller.transcribe(recording("austen_0890"), languages=["en"], beam_size=5, max_alternatives=4)
    texts = [other.text for other in answer.segments[0].alternatives]
    assert texts
    assert len({answer.text, *texts}) == 1 + len(texts)
    timing = answer.usage.timing
    assert timing.decode_us > timing.prefill_us / 10 > 0


async def test_a_model_tells_what_it_hears(caller: Caller):
    model = (await caller.models.GetModel(model_pb2.GetModelRequest(model="whisper"))).model
    assert list(model.tasks) == [model_pb2.Model.TASK_TRANSCRIBE]
    told = model.transcription
    assert (told.word_timestamps, told.live, told.translate, told.native_sample_rate_hz) == (True, True, True, 16_000)
    assert {"en", "de", "zh"} < set(told.languages)
    assert model.limits.max_audio_duration.seconds == 14_400
    assert model.limits.default_idle_timeout.seconds == 30
    assert not model.HasField("generation")


async def test_a_language_that_it_lacks_is_refused_with_those_that_it_has(caller: Caller):
    with pytest.raises(grpc.aio.AioRpcError, match="en, zh, de") as raised:
        await caller.transcribe(recording("goforward"), languages=["tlh"])
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_worker_that_dies_ends_its_streams_and_is_started_again(caller: Caller):
    call = caller.recording(samples("austen_0890") * 24, format=PCM, languages=["en"])
    await call.read()
    (worker,) = (await caller.models.GetModel(model_pb2.GetModelRequest(model="whisper"))).model.workers
    os.kill(worker.pid, signal.SIGKILL)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert (await caller.transcribe(recording("goforward"))).text == TEXTS["goforward"]
