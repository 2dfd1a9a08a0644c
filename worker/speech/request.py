"""A request for speech as the engine runs it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.audio.recording import Recording
from worker.speech.finalizations import Finalizations
from worker.speech.options import SpeechOptions


class Audio(Protocol):
    """What of an `Intake` the engine's thread reads."""

    @property
    def recordings(self) -> Sequence[Recording]:
        """One for each channel that is transcribed apart; empty until it is known how many there are."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SpeechRequest:
    """One request.

    Attributes:
        request_id: what people know it by.
        options: what is asked for.
        audio: what comes; the one who opened it closes it once the engine has ended the request.
        is_whole: whether the audio comes in one message: all of it is decoded before the first window is heard.
        priority: -128 (last) to 127 (first).
        deadline: in seconds of the engine's clock.
        finalizations: where the caller wants the utterance ended.
        key: unique among those in flight.
    """

    request_id: str
    options: SpeechOptions
    audio: Audio
    is_whole: bool = False
    priority: int = 0
    deadline: float | None = None
    finalizations: Finalizations = field(default_factory=Finalizations)
    key: str = field(default_factory=lambda: secrets.token_hex(16))
