"""One request for speech between its arrival and its end, as its service holds it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from worker.audio.errors import AudioError
from worker.audio.intake import Intake
from worker.errors import WorkerError, incident_of
from worker.events import EndingSoon
from worker.services.bringing import Bringer
from worker.services.desk import Desk
from worker.services.edge import Call
from worker.services.handed import Handed
from worker.speech.asking import Asked
from worker.speech.failures import audio_failure
from worker.speech.request import SpeechRequest
from worker.speech.served import ServedSpeech
from worker.workloads.speech import SpeechPlan

SpeechDesk = Desk[SpeechRequest, SpeechPlan]


class Transcribing(Handed[SpeechRequest, SpeechPlan]):
    """Hands a checked request to the engine, has its audio brought, and takes its events.

    Leaving, however it comes about, ends the request in the engine and frees the threads and files of its audio.

    Args:
        desk: where to hand it in.
        served: the model.
        asked: what is asked for.
        call: whose it is; its `usage` follows what fails.
        method: name of the RPC.
        bringer: brings the audio.
    """

    def __init__(
        self, desk: SpeechDesk, served: ServedSpeech, asked: Asked, call: Call, method: str, bringer: Bringer
    ) -> None:
        super().__init__(desk, call, asked.envelope.request_id, method)
        self._open.on_ending = self._note_ending
        self._served = served
        self._asked = asked
        self._bringer = bringer
        self._bringing: asyncio.Task[None] | None = None
        options = asked.options
        self._intake = Intake(
            options.pcm, separates=options.separates, limits=served.limits, on_change=desk.engine.wake
        )

    async def __aenter__(self) -> Self:
        """Submit the request, and begin to bring its audio.

        Raises:
            WorkerError: the request is refused; what it is says why.
        """
        self._call.check_envelope(self._asked.envelope, self._served.resolved.model)
        await super().__aenter__()
        try:
            self._submit(self._request())
        except BaseException:
            self._desk.requests.remove(self._open)
            raise
        self._bringing = asyncio.create_task(self._bringer.bring(self._intake))
        self._bringing.add_done_callback(self._note_brought)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request in the engine unless it has ended, and let go of its audio."""
        await super().__aexit__(kind, error, trace)
        # Whoever cancels this call again does not keep its threads alive.
        await asyncio.shield(asyncio.create_task(self._let_go()))

    def _request(self) -> SpeechRequest:
        return SpeechRequest(
            request_id=self._open.request_id,
            options=self._asked.options,
            audio=self._intake,
            is_whole=self._bringer.is_whole,
            finalizations=self._bringer.finalizations,
            priority=self._asked.envelope.priority,
            deadline=self._deadline(),
        )

    def _note_brought(self, bringing: asyncio.Task[None]) -> None:
        """End the request where its audio did not come as it should."""
        if bringing.cancelled() or (error := bringing.exception()) is None:
            return
        if isinstance(error, AudioError):
            self._end(audio_failure(error))
        else:
            self._end(error if isinstance(error, WorkerError) else incident_of(error, "audio was not brought"))

    def _note_ending(self, remaining_s: float) -> None:
        self._outbox.put(EndingSoon(remaining_s))

    async def _let_go(self) -> None:
        if self._bringing is not None:
            self._bringing.cancel()
            await asyncio.wait([self._bringing])
        await self._intake.close()
