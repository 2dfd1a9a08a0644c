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
        last_listened: number of the tick in which it listened last.
    """

    job: Job[SpeechRequest]
    transcriber: Transcriber
    clock: PhaseClock
    share: Share = field(default_factory=Share)
    windows: list[OpenWindow] = field(default_factory=list[OpenWindow])
    num_tokens: int = 0
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

    def view(self) -> RequestView:
        """Describe it; may be called on any thread."""
        request = self.job.request
        state = "paused" if self.is_paused else "decoding" if self.has_started else "queued"
        usage = Usage(completion_tokens=self.num_tokens)
        return RequestView(request.key, request.request_id, state, self.job.submitted, usage)
