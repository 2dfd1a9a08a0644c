"""What has come of a transcript."""

from dataclasses import dataclass, field

from pomona.v1 import transcription_pb2 as t

Event = (
    t.TranscriptionReady
    | t.Segment
    | t.VoiceActivity
    | t.LanguageDetected
    | t.TranscriptionProgress
    | t.StreamEnding
    | t.TranscriptionCompleted
)


@dataclass
class Heard:
    """A transcript, put together from its events.

    Attributes:
        ready: the model that hears; the audio is sent once this is there.
        segments: the final ones, in their order.
        interim: the newest text that may still change; None where none is open.
        completed: the whole text, the language and what it took; set at the end.
    """

    ready: t.TranscriptionReady | None = None
    segments: list[t.Segment] = field(default_factory=list[t.Segment])
    interim: t.Segment | None = None
    completed: t.TranscriptionCompleted | None = None

    @property
    def text(self) -> str:
        """What was heard so far, without what may still change."""
        return "".join(segment.stable_text for segment in self.segments)

    @property
    def language_code(self) -> str:
        """The language; empty until it is known."""
        return self.completed.language_code if self.completed else next((s.language_code for s in self.segments), "")

    def take(self, response: t.StreamTranscribeResponse) -> Event | None:
        """Add an event and return it, or None for one that this version does not know."""
        kind = response.event.WhichOneof("event")
        if kind is None:
            return None
        event: Event = getattr(response.event, kind)
        if isinstance(event, t.TranscriptionReady):
            self.ready = event
        elif isinstance(event, t.Segment):
            self._add(event)
        elif isinstance(event, t.TranscriptionCompleted):
            self.completed = event
        return event

    def _add(self, segment: t.Segment) -> None:
        self.interim = None if segment.final else segment
        if segment.final:
            self.segments.append(segment)
