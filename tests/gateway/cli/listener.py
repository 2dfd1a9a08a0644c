"""A scripted server that listens: it takes the audio of a call and answers with what it was told to hear."""

from collections.abc import Iterator, Sequence

from google.protobuf.duration_pb2 import Duration
from pomona.v1 import model_pb2 as m
from pomona.v1 import transcription_pb2 as t

from tests.support.scripted_server import ScriptedServer, Step


def span(seconds: float) -> Duration:
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def word(text: str, start_s: float, end_s: float) -> t.Word:
    return t.Word(text=text, start_offset=span(start_s), end_offset=span(end_s), probability=0.5)


def segment(
    text: str, start_s: float = 0, end_s: float = 1, *, words: Sequence[t.Word] = (), channel: int = 0, number: int = 0
) -> t.Segment:
    """Return a final segment."""
    return t.Segment(
        segment_id=number,
        final=True,
        start_offset=span(start_s),
        end_offset=span(end_s),
        stable_text=text,
        words=words,
        channel=channel,
    )


def interim(stable: str, unstable: str, number: int = 0) -> t.Segment:
    return t.Segment(segment_id=number, stable_text=stable, unstable_text=unstable)


def ready(chunk_bytes: int = 0) -> t.StreamTranscribeResponse:
    event = t.TranscriptionEvent(ready=t.TranscriptionReady(request_id="r1", preferred_chunk_bytes=chunk_bytes))
    return t.StreamTranscribeResponse(event=event)


def said(each: t.Segment) -> t.StreamTranscribeResponse:
    return t.StreamTranscribeResponse(event=t.TranscriptionEvent(segment=each))


class Listener:
    """The script of `StreamTranscribe`.

    Attributes:
        starts: the first request of each call.
        audio: the bytes that came, a list of chunks for each call.
    """

    def __init__(self, *heard: t.Segment | Step, chunk_bytes: int = 0, audio_s: float = 2.0) -> None:
        self.starts: list[t.StreamTranscribeRequest] = []
        self.audio: list[list[bytes]] = []
        self._heard = heard
        self._chunk_bytes = chunk_bytes
        self._audio_s = audio_s

    def __call__(self, requests: Iterator[t.StreamTranscribeRequest]) -> Iterator[Step]:
        self.starts.append(next(requests))
        yield ready(self._chunk_bytes)
        self.audio.append([request.audio for request in requests])
        text = ""
        for each in self._heard:
            if isinstance(each, t.Segment):
                text += each.stable_text if each.final else ""
                yield said(each)
            else:
                yield each
        completed = t.TranscriptionCompleted(text=text, language_code="en")
        completed.usage.audio_duration.CopyFrom(span(self._audio_s))
        completed.usage.speech_duration.CopyFrom(span(1.5))
        completed.usage.decoded_tokens = 7
        yield t.StreamTranscribeResponse(event=t.TranscriptionEvent(completed=completed))


def listen(server: ScriptedServer, *heard: t.Segment | Step, chunk_bytes: int = 0) -> Listener:
    """Have a server hear something, with a model that does and one that does not."""
    server.scripts["ListModels"] = [
        m.ListModelsResponse(
            models=[
                m.Model(model="smol", tasks=[m.Model.TASK_GENERATE]),
                m.Model(model="ears", tasks=[m.Model.TASK_TRANSCRIBE]),
            ]
        )
    ]
    listener = Listener(*heard, chunk_bytes=chunk_bytes)
    server.scripts["StreamTranscribe"] = listener
    return listener
