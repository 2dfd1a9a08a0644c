"""What a request for speech and the workload say to each other: windows to be heard, and what they said.

A `Transcriber` knows one request from its audio to its events, and nothing of the others; the workload computes the
windows of all of them together. Both live on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from models.whisper.decoding import Decoding, DecodingOptions, WindowText
from models.whisper.words import Word
from worker.events import SpeechEvent
from worker.speech.fairness import Urgency


class Hearing(Protocol):
    """One window that a request wants heard.

    The order: `begin`, `spoken`, `end`, each once. A window that is abandoned gets no further call.
    """

    @property
    def mel(self) -> mx.array:
        """float32 [F, M], F up to a window's 3,000 frames; what is missing is filled up with zeros."""
        ...

    @property
    def languages(self) -> Sequence[str] | None:
        """Of which the window's must be found before it is decoded; None: it is known, or none is needed."""
        ...

    @property
    def urgency(self) -> Urgency:
        """How soon it must be heard."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whether it is still of use; if not, it is abandoned at the next step, as an interim that was overtaken."""
        ...

    def begin(self, probabilities: Mapping[str, float] | None) -> Decoding:
        """Return how the window is decoded.

        Args:
            probabilities: of `languages`, likeliest first; None where they were not asked for.
        """
        ...

    @property
    def options(self) -> DecodingOptions:
        """Those of the decoding that was begun; the alignment of words needs its language and task."""
        ...

    def spoken(self, text: WindowText) -> tuple[int, ...]:
        """Return the tokens of a window's text whose words are to be placed in time; none where nobody asked."""
        ...

    def end(self, text: WindowText, words: Sequence[Word] | None) -> None:
        """Take what the window said.

        Args:
            text: of the window.
            words: of the tokens that `spoken` returned, seconds from the start of the window; None where there were
                none.
        """
        ...


@dataclass(frozen=True, slots=True)
class SpeechUsage:
    """What a request has heard so far.

    Attributes:
        audio_s: seconds of audio that came, those outside its clips among them; of separate channels the longest.
        speech_s: seconds in which somebody speaks, of separate channels the most; None where nobody looked.
    """

    audio_s: float = 0.0
    speech_s: float | None = None


class Transcriber(Protocol):
    """One request from its audio to its events.

    The workload calls, in each tick: `listen`, then `next` until that returns None or no more windows may be open, then
    `take_events`. Any of them may raise: the request then ends with that error, alone.
    """

    @property
    def urgency(self) -> Urgency:
        """Of the window that `next` returns; where there is none, whether somebody listens at all."""
        ...

    def listen(self) -> bool:
        """Take in some of the audio that has come: work of a few hundredths of a second, such as finding speech in it.

        Returns:
            Whether there is more to take in at once.
        """
        ...

    def next(self) -> Hearing | None:
        """Return a window that is to be heard now; it is open until its `end`.

        Returns:
            None where there is nothing for now: it waits for audio, or for a window that is open.
        """
        ...

    def has_next(self) -> bool:
        """Return whether `next` would return a window."""
        ...

    def take_events(self) -> list[SpeechEvent]:
        """Return what happened since the last call, in the order in which the reader is to learn it."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all audio has come and is heard, and all events are taken."""
        ...

    def usage(self) -> SpeechUsage:
        """Return what was heard so far."""
        ...
