"""A request for speech inside the workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.events import Usage
from worker.job import Job, RequestView
from worker.phases import PhaseClock
from worker.speech.fairness import Share, Urgency
from worker.speech.hearing import Transcriber
from worker.speech.open_window import OpenWindow
from worker.speech.request import SpeechRequest


@dataclass(slots=True, eq=False)
class SpeechTask:
    """A job with its transcriber and its windows.

    Attributes:
        windows: those that are open.
        num_tokens: that were decoded for it.
        has_segment: whether one was told.
        last_listened: number of the tick in which it listened last.
    """

    job: Job[SpeechRequest]
    transcriber: Transcriber
    clock: PhaseClock
    share: Share = field(default_factory=Share)
    windows: list[OpenWindow] = field(default_factory=list[OpenWindow])
    num_tokens: int = 0
    has_segment: bool = False
    last_listened: int = 0

    @property
    def key(self) -> str:
        """Of the request."""
        return self.job.request.key

    @property
    def urgency(self) -> Urgency:
        """Of its next window."""
        return self.transcriber.urgency

    @property
    def num_texts(self) -> int:
        """Texts that are written of each of its windows, at most."""
        return self.job.request.options.num_texts

    @property
    def is_listened_to(self) -> bool:
        """Whether somebody listens while it is spoken."""
        return self.urgency is not Urgency.PATIENT

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.job.request.priority

    @property
    def is_paused(self) -> bool:
        """Whether its reader is so far behind that nothing more is heard for it."""
        return self.job.outbox.is_full

    @property
    def has_started(self) -> bool:
        """Whether a window of it was heard."""
        return self.share.num_windows > 0

    @property
    def usage(self) -> Usage:
        """What it consumed so far."""
        heard = self.transcriber.usage()
        return Usage(completion_tokens=self.num_tokens, audio_s=heard.audio_s, speech_s=heard.speech_s)

    def note_tokens(self, count: int, now: float) -> None:
        """Count tokens that were decoded for it until now."""
        self.num_tokens += count
        if count and self.clock.first_token is None:
            self.clock.first_token = now

    def view(self) -> RequestView:
        """Describe it; may be called on any thread."""
        request = self.job.request
        state = "paused" if self.is_paused else "decoding" if self.has_started else "queued"
        usage = Usage(completion_tokens=self.num_tokens)
        return RequestView(request.key, request.request_id, state, self.job.submitted, usage)
