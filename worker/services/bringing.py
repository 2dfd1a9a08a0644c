"""Brings the audio of a request to its intake: all at once, or message by message as a caller streams it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from worker.audio.intake import Intake
from worker.audio.pcm import SAMPLE_RATE_HZ
from worker.errors import StreamIdle
from worker.services.edge import Call
from worker.speech.asking import Asked, AudioChunk, Finalize, Skip, read_message
from worker.speech.finalizations import Finalizations
from worker.speech.options import SpeechOptions

# Of a recording in one message: the intake says after each whether there is room for more.
SLICE_BYTES = 256 << 10
# Decoded within a second or so, whatever it is.
SMALL_BYTES = 1 << 20


class Bringer(Protocol):
    """Where audio comes from."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there already."""
        ...

    @property
    def finalizations(self) -> Finalizations:
        """See `SpeechRequest.finalizations`."""
        ...

    async def bring(self, intake: Intake) -> None:
        """Bring all of it.

        Raises:
            AudioError: what is wrong with it.
            WorkerError: what is wrong with the messages that it is in.
        """
        ...


class WholeAudio:
    """Audio in one message.

    Args:
        content: as it came.
        turns: of large recordings, which are decoded as fast as may be and would leave the model no cores.
    """

    is_whole = True

    def __init__(self, content: bytes, turns: asyncio.Semaphore) -> None:
        self._content = content
        self._turns = contextlib.nullcontext() if len(content) <= SMALL_BYTES else turns
        self.finalizations = Finalizations()

    async def bring(self, intake: Intake) -> None:
        """See `Bringer`."""
        async with self._turns:
            for start in range(0, len(self._content), SLICE_BYTES):
                await intake.feed(self._content[start : start + SLICE_BYTES])
            self._content = b""
            await intake.finish()


class StreamedAudio:
    """Audio that a caller streams behind its config; the next message is read when the last is taken.

    Args:
        call: whose messages.
        asked: what the config says.
        wake: has the engine look at what was asked for beside the audio.
    """

    is_whole = False

    def __init__(self, call: Call, asked: Asked, wake: Callable[[], None]) -> None:
        self._call = call
        self._options = asked.options
        self._idle_s = asked.idle_s
        self._wake = wake
        self._brought_s = 0.0
        self.finalizations = Finalizations()

    async def bring(self, intake: Intake) -> None:
        """See `Bringer`.

        Raises:
            StreamIdle: nothing came for too long.
        """
        while (body := await self._receive()) is not None:
            match read_message(body, self._options):
                case AudioChunk(content):
                    await intake.feed(content)
                    self._brought_s += _raw_seconds(content, self._options)
                case Skip(seconds):
                    intake.skip(seconds)
                    self._brought_s += seconds
                case Finalize():
                    self.finalizations.add(self._place_s(intake))
                    self._wake()
                    await self.finalizations.room()
        await intake.finish()

    async def _receive(self) -> bytes | None:
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._call.receive()
        except TimeoutError:
            raise StreamIdle(self._idle_s) from None

    def _place_s(self, intake: Intake) -> float:
        """Return how many seconds the caller has sent; of a container, how many were decoded by now."""
        if self._options.pcm is not None:
            return self._brought_s
        return max((each.num_samples for each in intake.recordings), default=0) / SAMPLE_RATE_HZ


def _raw_seconds(content: bytes, options: SpeechOptions) -> float:
    pcm = options.pcm
    if pcm is None:
        return 0.0
    return len(content) / (pcm.encoding.sample_bytes * pcm.num_channels * pcm.rate_hz)
