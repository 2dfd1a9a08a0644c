"""Hosts a model that hears: the TranscriptionService."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from worker.audio.limits import AudioLimits
from worker.services.transcription import SERVICE, TranscriptionService
from worker.speech.facts import speech_facts
from worker.speech.loaded import LoadedSpeech
from worker.speech.loading import loaded_message, make_speech_workload, resolved_model
from worker.speech.served import ServedSpeech

if TYPE_CHECKING:
    import grpc
    from pomona.v1 import model_pb2

    from worker.child import Child
    from worker.services.desk import Desk
    from worker.services.edge import Edge
    from worker.settings import WorkerSettings


class SpeechHosting:
    """See `Hosting`.

    Args:
        settings: of the worker.
        child: started for templates, of which speech has none: it is ended at once.
    """

    services = frozenset({SERVICE})
    tasks = "transcribe"

    def __init__(self, settings: WorkerSettings, child: Child | None) -> None:
        self._settings = settings
        self._served: ServedSpeech | None = None
        self._ending = None if child is None else asyncio.get_running_loop().create_task(child.end())
        self.workload = make_speech_workload(settings)

    def handlers(
        self, edge: Edge, desk: Desk[Any, Any], check_active: Callable[[], None]
    ) -> Sequence[grpc.GenericRpcHandler]:
        """Return the TranscriptionService."""

        def served() -> ServedSpeech:
            check_active()
            return cast("ServedSpeech", self._served)  # there is one as soon as the check passes

        return [TranscriptionService(desk, served, self._settings.max_response_bytes).handlers(edge)]

    async def begin(self, loaded: object) -> model_pb2.Model:
        """Take the loaded model."""
        whisper, settings = cast("LoadedSpeech", loaded).whisper, self._settings
        self._served = ServedSpeech(
            speech_facts(
                whisper.model.config, settings.max_audio_s, settings.audio_idle_s, max_texts=self.workload.max_rows
            ),
            AudioLimits(settings.max_audio_s, settings.max_audio_bytes, settings.max_audio_decoded_bytes),
            resolved_model(whisper, settings),
        )
        await self.close()
        return loaded_message(whisper, self.workload.max_rows, settings)

    async def close(self) -> None:
        """See that the child has ended."""
        if self._ending is not None:
            await self._ending
