"""Audio and marks of a caller that streams faster than the engine looks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from pomona.v1 import transcription_pb2 as pb

from tests.support.waiting import eventually
from tests.worker.audio.intakes import intake_of
from tests.worker.speech.driving import GREEDY
from worker.audio.pcm import Encoding, PcmFormat
from worker.envelope import Envelope
from worker.services.bringing import StreamedAudio
from worker.speech.asking import Asked
from worker.speech.finalizations import MAX_WAITING
from worker.speech.options import LiveOptions

PCM = PcmFormat(Encoding.S16_LE, 16_000, 1)
ASKED = Asked(Envelope("m", "r", 0), replace(GREEDY, pcm=PCM, live=LiveOptions()), 30.0)
FINALIZE = pb.StreamTranscribeRequest(finalize=pb.FinalizeUtterance()).SerializeToString()
SAMPLE = pb.StreamTranscribeRequest(audio=bytes(2)).SerializeToString()


class Impatient:
    """Sends these messages again and again."""

    def __init__(self, *messages: bytes, rounds: int) -> None:
        self.num_sent = 0
        self._messages = messages * rounds

    async def receive(self) -> bytes | None:
        await asyncio.sleep(0)
        if self.num_sent == len(self._messages):
            return None
        self.num_sent += 1
        return self._messages[self.num_sent - 1]


async def test_a_flood_of_ends_of_utterances_waits_until_the_engine_looks():
    caller: Any = Impatient(SAMPLE, FINALIZE, rounds=10 * MAX_WAITING)
    audio = StreamedAudio(caller, ASKED, lambda: None)
    async with intake_of(PCM) as intake:
        bringing = asyncio.create_task(audio.bring(intake))
        taken: list[float] = []
        for rounds in range(1, 11):
            await eventually(lambda full=2 * rounds * MAX_WAITING: caller.num_sent >= full)
            assert caller.num_sent == 2 * rounds * MAX_WAITING
            taken += audio.finalizations.take()
        await asyncio.wait_for(bringing, 5)
    assert [round(place * 16_000) for place in taken] == list(range(1, 10 * MAX_WAITING + 1))


async def test_ends_without_audio_between_them_are_one():
    caller: Any = Impatient(FINALIZE, rounds=100 * MAX_WAITING)
    audio = StreamedAudio(caller, ASKED, lambda: None)
    async with intake_of(PCM) as intake:
        await asyncio.wait_for(audio.bring(intake), 5)
    assert audio.finalizations.take() == [0.0]
