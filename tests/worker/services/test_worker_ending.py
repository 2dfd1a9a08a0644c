"""Open requests learn in time that the worker will end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2, worker_pb2

from tests.support.tiny_whisper import write_mlx
from tests.support.worker_client import client_of, stamps
from tests.support.worker_process import MODEL, WorkerProcess
from worker.services.requests import OpenRequest, OpenRequests

PCM = transcription_pb2.RawPcm(
    encoding=transcription_pb2.RawPcm.ENCODING_S16_LE, sample_rate_hz=16_000, channel_count=1
)
CONFIG = transcription_pb2.StreamTranscriptionConfig(
    transcription=transcription_pb2.TranscriptionConfig(
        format=transcription_pb2.AudioFormat(pcm=PCM), languages=["en"], voice_activity_filter=False
    )
)


class Told:
    """Open requests at a time that the test sets, and what each of them was told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.requests = OpenRequests(lambda: self.now_s)

    def begin(self) -> list[float]:
        told: list[float] = []
        self.requests.add(OpenRequest("r", "Method", "", on_ending=told.append))
        return told


def test_open_requests_are_told_of_the_end_once() -> None:
    told = Told()
    first, second = told.begin(), told.begin()
    told.requests.tell_ending(30.0)
    assert (first, second) == ([30.0], [30.0])


def test_a_request_that_was_on_its_way_is_told_what_is_left() -> None:
    told = Told()
    told.requests.tell_ending(30.0)
    told.now_s += 12.0
    assert told.begin() == [18.0]
    told.now_s += 60.0
    assert told.begin() == [0.0]


def test_before_any_end_is_known_nobody_is_told_one() -> None:
    assert Told().begin() == []


def test_an_end_that_comes_nearer_is_told_again() -> None:
    told = Told()
    seen = told.begin()
    told.requests.tell_ending(30.0)
    told.requests.tell_ending(2.0)
    assert seen == [30.0, 2.0]


@pytest.mark.parametrize(("passed_s", "remaining_s"), [(0.0, 60.0), (0.0, 30.0), (29.8, 0.0)])
def test_the_same_end_and_a_later_one_are_not_told(passed_s: float, remaining_s: float) -> None:
    told = Told()
    seen = told.begin()
    told.requests.tell_ending(30.0)
    told.now_s += passed_s
    told.requests.tell_ending(remaining_s)
    assert seen == [30.0]


@pytest.fixture
def hearing_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    process = WorkerProcess(write_mlx(tmp_path_factory.mktemp("checkpoint") / "tiny"))
    yield process
    process.end()


async def test_an_announced_end_reaches_streams_and_stops_none_of_them(hearing_worker: WorkerProcess) -> None:
    first = transcription_pb2.StreamTranscribeRequest(model=MODEL, request_id="r", config=CONFIG)
    async with client_of(hearing_worker) as client:
        await client.is_active()
        call: Any = client.channel.stream_stream(
            "/pomona.v1.TranscriptionService/StreamTranscribe",
            response_deserializer=transcription_pb2.StreamTranscribeResponse.FromString,
        )(metadata=hearing_worker.metadata(stamps(first)), timeout=30)
        await call.write(first.SerializeToString())
        assert (await call.read()).event.HasField("ready")
        request = worker_pb2.AnnounceEndingRequest(remaining=Duration(seconds=20))
        await client.gateway.AnnounceEnding(request, metadata=hearing_worker.metadata())
        assert (await call.read()).event.ending.remaining == Duration(seconds=20)
        await call.done_writing()
        assert (await call.read()).event.HasField("completed")
        assert await call.code() is grpc.StatusCode.OK
