"""What the events of one transcription come to: the response that the unary method would give, and its figures."""

from pomona.v1 import transcription_pb2

from gateway.cli.output import counted
from gateway.cli.spans import seconds_of


class Transcript:
    """Gathers the events of a stream.

    Attributes:
        response: everything so far, as `Transcribe` would answer.
        is_complete: whether the stream came to its end.
    """

    def __init__(self) -> None:
        self.response = transcription_pb2.TranscribeResponse()
        self.is_complete = False

    def take(self, event: transcription_pb2.TranscriptionEvent) -> None:
        """Keep what lasts of an event: interim segments do not."""
        kind = event.WhichOneof("event")
        if kind == "ready":
            self.response.resolved_model.CopyFrom(event.ready.resolved_model)
            self.response.request_id = event.ready.request_id
        elif kind == "segment" and event.segment.final:
            self.response.segments.append(event.segment)
            self.response.text += event.segment.stable_text
        elif kind == "language":
            self.response.language_code = event.language.language_code
        elif kind == "completed":
            self.is_complete = True
            self.response.text = event.completed.text
            self.response.language_code = event.completed.language_code
            self.response.usage.CopyFrom(event.completed.usage)

    @property
    def audio_s(self) -> float:
        """The seconds of audio that were heard; 0 before the end."""
        return seconds_of(self.response.usage.audio_duration)

    def summary(self, took_s: float | None) -> str:
        """Return the figures in one line.

        Args:
            took_s: seconds from the moment that the model was ready; None where the speaker took them.
        """
        usage = self.response.usage
        parts = [f"{self.audio_s:.1f} s of audio", f"{seconds_of(usage.speech_duration):.1f} s of speech"]
        if self.response.language_code:
            parts.append(self.response.language_code)
        parts.append(counted(usage.decoded_tokens, "token"))
        if took_s is not None:
            parts.append(f"{took_s:.1f} s")
        if took_s is not None and self.audio_s > 0:
            parts.append(f"real-time factor {took_s / self.audio_s:.2f}")
        return f"[{', '.join(parts)}]"
