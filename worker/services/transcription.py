"""The TranscriptionService: reads a request strictly, has its audio heard, and sends what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from pomona.v1 import transcription_pb2 as pb

from worker.errors import ResponseTooLarge, StreamOrder
from worker.events import Completed, Event, LanguageFound, SpeechSegment, Started
from worker.services.bodies import BodyReader
from worker.services.bringing import StreamedAudio, WholeAudio
from worker.services.edge import Call, Edge
from worker.services.transcribing import SpeechDesk, Transcribing
from worker.speech.asking import Asked, read_opening, read_recording
from worker.speech.facts import ENGLISH
from worker.speech.messages import completed_message, event_message, ready_message, segment_message, usage_message
from worker.speech.served import ServedSpeech
from worker.speech.tags import tag_of

SERVICE = "pomona.v1.TranscriptionService"
# What an element of a list takes on the wire beside its content, at least: a tag and a length.
ELEMENT_BYTES = 2
# Large recordings that are decoded at once.
MAX_LARGE = 2


class TranscriptionService:
    """Answers Transcribe, StreamTranscribeRecording and StreamTranscribe.

    Args:
        desk: where requests are handed in.
        served: returns the loaded model; raises what a caller gets while there is none.
        max_response_bytes: of a unary answer.
    """

    def __init__(self, desk: SpeechDesk, served: Callable[[], ServedSpeech], max_response_bytes: int) -> None:
        self._desk = desk
        self._served = served
        self._max_response_bytes = max_response_bytes
        self._bodies = BodyReader()
        self._turns = asyncio.Semaphore(MAX_LARGE)

    def handlers(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Return the methods of this service for a server."""
        methods = {
            "Transcribe": edge.unary(self.transcribe),
            "StreamTranscribeRecording": edge.stream(self.stream_transcribe_recording),
            "StreamTranscribe": edge.duplex(self.stream_transcribe),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def transcribe(self, body: bytes, call: Call) -> pb.TranscribeResponse:
        """Return the whole transcript: what the events of the stream add up to."""
        served = self._served()
        asked, audio = await self._bodies.read(
            body, lambda read: read_recording(read, pb.TranscribeRequest, served.facts)
        )
        answer = _Answer(served, asked, self._max_response_bytes)
        async with Transcribing(
            self._desk, served, asked, call, "Transcribe", WholeAudio(audio, self._turns)
        ) as transcribing:
            while not answer.is_complete:
                event = await transcribing.take()
                if isinstance(event, Started):
                    await call.begin()
                answer.add(event)
        return answer.response

    async def stream_transcribe_recording(self, body: bytes, call: Call) -> None:
        """Send each event of a recording that is all there."""
        served = self._served()
        asked, audio = await self._bodies.read(
            body, lambda read: read_recording(read, pb.StreamTranscribeRecordingRequest, served.facts)
        )
        stream = _Stream(call, served, asked, pb.StreamTranscribeRecordingResponse)
        await stream.run(
            Transcribing(self._desk, served, asked, call, "StreamTranscribeRecording", WholeAudio(audio, self._turns))
        )

    async def stream_transcribe(self, call: Call) -> None:
        """Send each event of audio that comes message by message."""
        served = self._served()
        body = await call.receive()
        if body is None:
            raise StreamOrder("the stream ended before its config")
        asked = await self._bodies.read(body, lambda read: read_opening(read, served.facts))
        audio = StreamedAudio(call, asked, self._desk.engine.wake)
        stream = _Stream(call, served, asked, pb.StreamTranscribeResponse)
        await stream.run(Transcribing(self._desk, served, asked, call, "StreamTranscribe", audio))


class _Heard:
    """The text of a request while its events come."""

    def __init__(self, served: ServedSpeech, asked: Asked) -> None:
        languages = asked.options.languages
        self.language = languages[0] if len(languages) == 1 else "" if served.facts.is_multilingual else ENGLISH
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, event: Event) -> None:
        match event:
            case LanguageFound():
                self.language = event.language
            case SpeechSegment() if event.is_final:
                self._texts.append(event.stable_text)
                self.language = event.language or self.language
            case _:
                pass


class _Stream:
    """The answer of a stream: numbered events, `ready` first and `completed` last."""

    def __init__(
        self,
        call: Call,
        served: ServedSpeech,
        asked: Asked,
        kind: type[pb.StreamTranscribeResponse | pb.StreamTranscribeRecordingResponse],
    ) -> None:
        self._call = call
        self._served = served
        self._asked = asked
        self._kind = kind
        self._heard = _Heard(served, asked)
        self._event_number = 0

    async def run(self, transcribing: Transcribing) -> None:
        async with transcribing:
            await self._call.begin()
            await self._send(ready_message(self._served.resolved, self._asked.envelope.request_id))
            event: Event | None = None
            while not isinstance(event, Completed):
                event = await transcribing.take()
                self._heard.add(event)
                await self._tell(event)

    async def _tell(self, event: Event) -> None:
        match event:
            case Started():
                pass  # the reader knows since `ready`
            case Completed():
                await self._send(completed_message(event, self._heard.text, self._heard.language))
            case _:
                await self._send(event_message(event))

    async def _send(self, event: pb.TranscriptionEvent) -> None:
        event.event_number = self._event_number
        await self._call.send(self._kind(event=event))
        self._event_number += 1


class _Answer:
    """A unary answer while its events come; `max_bytes` bounds it."""

    def __init__(self, served: ServedSpeech, asked: Asked, max_bytes: int) -> None:
        self.response = pb.TranscribeResponse(resolved_model=served.resolved, request_id=asked.envelope.request_id)
        self.is_complete = False
        self._heard = _Heard(served, asked)
        self._num_bytes = 0
        self._max_bytes = max_bytes

    def add(self, event: Event) -> None:
        self._heard.add(event)
        match event:
            case SpeechSegment():
                self._add_segment(event)
            case Completed():
                self.response.text = self._heard.text
                self.response.language_code = tag_of(self._heard.language)
                self.response.usage.CopyFrom(usage_message(event.usage, event.timing))
                self.is_complete = True
            case _:
                pass

    def _add_segment(self, segment: SpeechSegment) -> None:
        message = segment_message(segment)
        # Its text stands in the text of the whole too.
        self._num_bytes += message.ByteSize() + ELEMENT_BYTES + len(segment.stable_text.encode())
        if self._num_bytes > self._max_bytes:
            raise ResponseTooLarge(self._max_bytes, "audio")
        self.response.segments.append(message)
