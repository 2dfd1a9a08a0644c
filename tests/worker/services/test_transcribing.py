"""What a caller that leaves in the middle frees: the engine's work, the threads that decode, the files on disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import common_pb2

from tests.support.tiny_whisper import write_mlx
from tests.support.waiting import eventually
from tests.worker.audio.clips import wav
from tests.worker.speech.driving import GREEDY, loaded_speech, noise, s16
from worker.audio.limits import AudioLimits
from worker.audio.pcm import Encoding, PcmFormat
from worker.engine import Engine
from worker.envelope import Envelope
from worker.errors import AudioUndecodable, InternalError
from worker.events import Completed, EndingSoon
from worker.services.desk import Desk
from worker.services.requests import OpenRequests
from worker.services.transcribing import SpeechDesk, Transcribing
from worker.speech.asking import Asked
from worker.speech.bounds import SpeechBounds
from worker.speech.facts import speech_facts
from worker.speech.finalizations import Finalizations
from worker.speech.options import SpeechOptions
from worker.speech.served import ServedSpeech
from worker.speech.transcribers import make_transcriber
from worker.workloads.speech import SpeechWorkload

RAW = replace(GREEDY, pcm=PcmFormat(Encoding.S16_LE, 16_000, 1))
CONTAINER = replace(GREEDY, pcm=None)


class GivenCall:
    """A call as the service sees it, of nobody."""

    usage = None
    principal = "p"

    def check_envelope(self, envelope: Envelope, model: str) -> None: ...

    def time_remaining(self) -> float | None:
        return None


class Brought:
    """Brings chunks, and then waits for ever or ends."""

    is_whole = False

    def __init__(self, *chunks: bytes, ends: bool = False) -> None:
        self.finalizations = Finalizations()
        self._chunks = chunks
        self._ends = ends

    async def bring(self, intake: Any) -> None:
        for chunk in self._chunks:
            await intake.feed(chunk)
        if self._ends:
            await intake.finish()
        else:
            await asyncio.Event().wait()


class Broken(Brought):
    """Fails in the middle."""

    async def bring(self, intake: Any) -> None:
        raise RuntimeError("no more")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mlx(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture
async def desk(checkpoint: Path) -> AsyncIterator[SpeechDesk]:
    workload = SpeechWorkload(
        lambda _: loaded_speech(checkpoint),
        make_transcriber,
        SpeechBounds(max_rows=4),
    )
    engine = Engine(workload, asyncio.get_running_loop())
    engine.start()
    await engine.load()
    before = nameless_files()  # those of the tests' own output
    made = Desk(engine, OpenRequests(), 1 << 18)
    yield made
    await eventually(lambda: not decoding_threads())
    assert nameless_files() <= before
    assert made.requests.all() == []
    await eventually(lambda: not engine.requests())
    assert workload.counts().cache_bytes == 0
    await engine.stop(0)


def transcribing(desk: SpeechDesk, options: SpeechOptions, bringer: Any) -> Transcribing:
    workload: Any = desk.engine.workload
    facts = speech_facts(workload._ready.config, 3600.0, 30.0)
    limits = AudioLimits(3600.0, 1 << 30, 1 << 30)
    served = ServedSpeech(facts, limits, common_pb2.ResolvedModel(model="m"))
    call: Any = GivenCall()
    return Transcribing(desk, served, Asked(Envelope("m", "r", 0), options, 30.0), call, "StreamTranscribe", bringer)


def raw(seconds: float) -> bytes:
    return s16(noise(seconds))


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("audio")]


def nameless_files() -> set[str]:
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(each.readlink()))
    return {name for name in found if name.endswith("(deleted)")}


async def all_of(work: Transcribing) -> Completed:
    """Take all events, and return the last."""
    async with work:
        while not isinstance(event := await work.take(), Completed):
            pass
    return event


@contextlib.asynccontextmanager
async def abandoned(work: Transcribing, until: Callable[[], bool]) -> AsyncGenerator[None]:
    """Run a request until something holds, and cancel its task as gRPC does."""

    task = asyncio.create_task(all_of(work))
    await eventually(until)
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_leaving_while_a_container_waits_for_more_ends_its_thread(desk: SpeechDesk):
    work = transcribing(desk, CONTAINER, Brought(wav(raw(30))[:-1000]))
    async with abandoned(work, lambda: bool(decoding_threads())):
        pass


async def test_leaving_frees_the_file_of_a_long_recording(desk: SpeechDesk):
    before = nameless_files()
    work = transcribing(desk, RAW, Brought(*[raw(30)] * 6))
    async with abandoned(work, lambda: nameless_files() > before):
        pass


async def test_leaving_while_windows_are_heard_ends_them(desk: SpeechDesk):
    work = transcribing(desk, RAW, Brought(raw(60), ends=True))
    async with abandoned(work, lambda: desk.engine.workload.counts().running == 1):
        pass


async def test_what_completes_leaves_nothing_behind(desk: SpeechDesk):
    completed = await all_of(transcribing(desk, CONTAINER, Brought(wav(raw(1)), ends=True)))
    assert completed.usage.audio_s == pytest.approx(1)


async def test_audio_that_cannot_be_read_ends_the_request_with_its_failure(desk: SpeechDesk):
    with pytest.raises(AudioUndecodable):
        await all_of(transcribing(desk, CONTAINER, Brought(b"nonsense" * 100, ends=True)))


async def test_a_bringer_that_breaks_ends_the_request(desk: SpeechDesk, caplog: pytest.LogCaptureFixture):
    with pytest.raises(InternalError):
        await all_of(transcribing(desk, RAW, Broken()))
    assert "no more" in caplog.text


async def test_a_request_is_told_that_the_worker_ends(desk: SpeechDesk):
    async with transcribing(desk, RAW, Brought()) as work:
        desk.requests.tell_ending(2.5)
        assert await work.take() == EndingSoon(2.5)
