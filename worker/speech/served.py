"""The loaded model for speech as its service uses it."""

from __future__ import annotations

from dataclasses import dataclass

from pomona.v1 import common_pb2

from worker.audio.limits import AudioLimits
from worker.speech.facts import SpeechFacts


@dataclass(frozen=True, slots=True)
class ServedSpeech:
    """What a request needs beside the engine.

    Attributes:
        facts: of the model, for checks.
        limits: of a request's audio.
        resolved: which model answers.
    """

    facts: SpeechFacts
    limits: AudioLimits
    resolved: common_pb2.ResolvedModel
