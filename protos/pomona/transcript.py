"""A transcript that is being heard."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Protocol, Self

import grpc

from pomona.audio import Audio, chunks
from pomona.failure import failure_of
from pomona.heard import Event, Heard
from pomona.v1 import transcription_pb2 as t


class Call(Protocol):
    """The part of a gRPC call that is used here."""

    def __iter__(self) -> Iterator[t.StreamTranscribeResponse]:
        """Yield what the server sends."""
        ...

    def cancel(self) -> object:
        """End the call."""
        ...

    def add_callback(self, callback: Callable[[], None]) -> object:
        """Have `callback` called once the call has ended."""
        ...


Start = Callable[[Iterator[t.StreamTranscribeRequest]], Call]


class Transcript:
    """Iterating gives the text of each final segment; `events` gives everything, text that may still change too.

    Read it in one of these ways, once. Leaving a `with` block, or a loop, early cancels the request.

    Attributes:
        heard: what has come so far.
    """

    def __init__(self, start: Start, config: t.StreamTranscribeRequest, audio: Audio) -> None:
        self.heard = Heard()
        self._audio = audio
        self._is_ended = False
        self._may_send = threading.Event()
        self._failure: Exception | None = None
        self._call = start(self._requests(config))
        self._call.add_callback(self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Generator[str]:
        """Yield the text of final segments.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read.
        """
        with closing(self.events()) as events:
            yield from (each.stable_text for each in events if isinstance(each, t.Segment) and each.final)

    def events(self) -> Generator[Event]:
        """Yield the messages of the contract's events; the last, at the end, is `TranscriptionCompleted`.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read. What the audio's own iterator raises comes here, too.
        """
        try:
            for response in self._call:
                event = self.heard.take(response)
                if self.heard.ready is not None:
                    self._may_send.set()
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise self._failure or failure_of(error) from error
        finally:
            self.cancel()

    def result(self) -> Heard:
        """Wait for the end, and return the whole.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read.
        """
        for _ in self.events():
            pass
        return self.heard

    def cancel(self) -> None:
        """End the request; of one that is complete nothing changes. Another thread may call this."""
        self._end()
        self._call.cancel()

    def _end(self) -> None:
        """Send nothing more: the call has ended, by its deadline at the latest."""
        self._is_ended = True
        self._may_send.set()

    def _requests(self, config: t.StreamTranscribeRequest) -> Iterator[t.StreamTranscribeRequest]:
        """Yield the config, then, once the model is ready, the audio; gRPC reads this in a thread of its own."""
        yield config
        self._may_send.wait()  # until the call ends at most, which its deadline sees to
        try:
            for chunk in () if self._is_ended else self._chunks():
                if self._is_ended:
                    return
                yield t.StreamTranscribeRequest(audio=chunk)
        except Exception as error:  # noqa: BLE001 - what the caller's audio raises, where nobody would hear of it
            # What came so far must not pass for the whole.
            self._failure = error
            self._call.cancel()

    def _chunks(self) -> Iterator[bytes]:
        return chunks(self._audio, self.heard.ready.preferred_chunk_bytes if self.heard.ready else 0)
