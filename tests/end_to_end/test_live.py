"""Live captions through a whole server: gateway, worker and Whisper base."""

import signal
import threading
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2 as pb
from pomona.v1 import transcription_pb2_grpc

from native import kernels
from tests.support.served import Served, served
from tests.support.whisper_base import whisper_base_path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension: minutes without it"),
]
RECORDINGS = Path(__file__).parents[1] / "models" / "whisper" / "recordings"
TIMEOUT_S = 50.0
STEP_BYTES = 3200  # a tenth of a second


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--model", f"whisper={whisper_base_path()}") as running:
        yield running


@pytest.fixture
def stub(server: Served) -> Iterator[transcription_pb2_grpc.TranscriptionServiceStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield transcription_pb2_grpc.TranscriptionServiceStub(channel)


def samples(name: str) -> bytes:
    with wave.open(str(RECORDINGS / f"{name}.wav")) as file:
        return file.readframes(file.getnframes())


def opening(num_channels: int = 1, **live: object) -> pb.StreamTranscribeRequest:
    pcm = pb.RawPcm(
        encoding=pb.RawPcm.ENCODING_S16_LE,
        sample_rate_hz=16_000,
        channel_count=num_channels,
        channel_mode=pb.RawPcm.CHANNEL_MODE_SEPARATE,
    )
    heard = pb.TranscriptionConfig(format=pb.AudioFormat(pcm=pcm), languages=["en"], word_timestamps=True)
    config = pb.StreamTranscriptionConfig(
        transcription=heard,
        mode=pb.StreamTranscriptionConfig.MODE_LIVE,
        interim_results=True,
        voice_activity_events=True,
        **live,  # pyright: ignore[reportArgumentType]
    )
    return pb.StreamTranscribeRequest(model="whisper", config=config)


def in_steps(content: bytes) -> list[pb.StreamTranscribeRequest]:
    return [
        pb.StreamTranscribeRequest(audio=content[start : start + STEP_BYTES])
        for start in range(0, len(content), STEP_BYTES)
    ]


def check_order(events: Sequence[pb.TranscriptionEvent]) -> list[pb.Segment]:
    """Check what holds of every stream; return its final segments."""
    kinds = [event.WhichOneof("event") for event in events]
    assert [event.event_number for event in events] == list(range(len(events)))
    assert (kinds[0], kinds[-1]) == ("ready", "completed")
    assert kinds.count("ready") == kinds.count("completed") == 1
    segments = [event.segment for event in events if event.HasField("segment")]
    finals = [segment for segment in segments if segment.final]
    for segment in segments:
        (final,) = (each for each in finals if each.segment_id == segment.segment_id)
        assert final.stable_text.startswith(segment.stable_text)
        assert not (segment.final and segment.unstable_text)
    assert "".join(final.stable_text for final in finals) == events[-1].completed.text
    return finals


def seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def test_a_clip_that_comes_at_once_is_transcribed_utterance_by_utterance(
    stub: transcription_pb2_grpc.TranscriptionServiceStub,
) -> None:
    first, second = samples("goforward"), samples("austen_0880")
    silence = pb.StreamTranscribeRequest(skip=Duration(seconds=2))
    requests = [opening(time_offset=Duration(seconds=100), first_segment_id=5), *in_steps(first), silence]
    events = [each.event for each in stub.StreamTranscribe(iter([*requests, *in_steps(second)]), timeout=TIMEOUT_S)]

    finals = check_order(events)
    assert [final.segment_id for final in finals] == [5, 6]
    texts = [final.stable_text.strip().lower() for final in finals]
    assert texts[0].startswith("go forward")
    assert texts[1].startswith("he was not an ill")
    assert [final.end_reason for final in finals] == [pb.SEGMENT_END_SILENCE, pb.SEGMENT_END_END_OF_AUDIO]
    assert 100 < seconds(finals[0].start_offset) < 101
    assert 104.5 < seconds(finals[1].start_offset) < 105.8
    assert all("".join(word.text for word in final.words) == final.stable_text for final in finals)
    times = [seconds(at) for final in finals for word in final.words for at in (word.start_offset, word.end_offset)]
    assert times == sorted(times)
    changes = [event.voice_activity.kind for event in events if event.HasField("voice_activity")]
    assert changes == [pb.VoiceActivity.KIND_SPEECH_STARTED, pb.VoiceActivity.KIND_SPEECH_ENDED] * 2
    assert seconds(events[-1].completed.usage.audio_duration) == pytest.approx(7.776, abs=0.01)


def test_interims_come_while_somebody_speaks_and_the_final_when_the_caller_wants_it(
    stub: transcription_pb2_grpc.TranscriptionServiceStub,
) -> None:
    content, half = samples("austen_0890"), 30 * STEP_BYTES
    has_interim, has_final = threading.Event(), threading.Event()

    def requests() -> Iterator[pb.StreamTranscribeRequest]:
        yield opening()
        yield pb.StreamTranscribeRequest(audio=content[:half])  # at once, so that the first interim has a few words
        assert has_interim.wait(TIMEOUT_S)
        yield from in_steps(content[half:])
        yield pb.StreamTranscribeRequest(finalize=pb.FinalizeUtterance())
        assert has_final.wait(TIMEOUT_S)

    events: list[pb.TranscriptionEvent] = []
    for response in stub.StreamTranscribe(requests(), timeout=TIMEOUT_S):
        events.append(response.event)
        if response.event.HasField("segment"):
            (has_final if response.event.segment.final else has_interim).set()

    (final,) = check_order(events)
    assert final.end_reason in (pb.SEGMENT_END_CLIENT_FINALIZED, pb.SEGMENT_END_SILENCE)
    assert "cold" in final.stable_text
    assert "selfish" in final.stable_text
    interims = [event.segment for event in events if event.HasField("segment") and not event.segment.final]
    assert "rather" in (interims[0].stable_text + interims[0].unstable_text)


def test_nothing_is_said_in_silence_noise_and_tones(stub: transcription_pb2_grpc.TranscriptionServiceStub) -> None:
    quiet = bytes(2 * 16_000)
    noise = bytes(place * 7919 % 251 for place in range(2 * 16_000))
    tone = b"".join((8000 if place // 40 % 2 else -8000).to_bytes(2, "little", signed=True) for place in range(16_000))
    hour = pb.StreamTranscribeRequest(skip=Duration(seconds=3600))
    requests = [opening(), *in_steps(quiet + noise + tone), hour, *in_steps(quiet)]
    events = [each.event for each in stub.StreamTranscribe(iter(requests), timeout=TIMEOUT_S)]

    assert check_order(events) == []
    assert events[-1].completed.usage.audio_duration.seconds == 3604


def test_texts_of_two_channels_join(stub: transcription_pb2_grpc.TranscriptionServiceStub) -> None:
    frames = [content[place : place + 2] for content in [samples("goforward")] for place in range(0, len(content), 2)]
    late = [bytes(2)] * 8_000
    both = b"".join(left + right for left, right in zip([*frames, *late], [*late, *frames], strict=True))
    requests = [opening(num_channels=2), *in_steps(both)]
    events = [each.event for each in stub.StreamTranscribe(iter(requests), timeout=TIMEOUT_S)]

    finals = check_order(events)
    assert {final.channel for final in finals} == {0, 1}
    words = events[-1].completed.text.lower().replace(".", "").replace(",", "").split(" ")
    assert words.count("go") == words.count("meters") == 2
    assert "" not in words


def test_a_live_stream_is_told_that_the_server_ends_and_can_be_finished_by_then() -> None:
    speaking, told = threading.Event(), threading.Event()
    with served("--model", f"whisper={whisper_base_path()}") as own, grpc.insecure_channel(own.address) as channel:

        def requests() -> Iterator[pb.StreamTranscribeRequest]:
            yield opening()
            yield from in_steps(samples("goforward"))
            assert speaking.wait(TIMEOUT_S)
            own.process.send_signal(signal.SIGTERM)
            assert told.wait(TIMEOUT_S)
            yield pb.StreamTranscribeRequest(finalize=pb.FinalizeUtterance())

        events: list[pb.TranscriptionEvent] = []
        stub = transcription_pb2_grpc.TranscriptionServiceStub(channel)
        for response in stub.StreamTranscribe(requests(), timeout=TIMEOUT_S):
            events.append(response.event)
            if response.event.HasField("segment"):
                speaking.set()
            if response.event.HasField("ending"):
                told.set()
        assert own.process.wait(TIMEOUT_S) == 0

    (ending,) = (event.ending for event in events if event.HasField("ending"))
    assert 20 < seconds(ending.remaining) <= 30
    (final,) = check_order(events)
    assert final.stable_text.strip().lower().startswith("go forward")
