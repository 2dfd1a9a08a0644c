"""A transcript that is being heard, read by asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self

import grpc

from pomona.audio import Audio, chunks
from pomona.failure import cancelled_by_hand, failure_of
from pomona.heard import Event, Heard
from pomona.v1 import transcription_pb2 as t

AsyncCall = grpc.aio.StreamStreamCall[t.StreamTranscribeRequest, t.StreamTranscribeResponse]
AsyncStart = Callable[[AsyncIterator[t.StreamTranscribeRequest]], AsyncCall]
AsyncAudio = Audio | AsyncIterator[bytes]


class AsyncTranscript:
    """Iterating gives the text of each final segment; `events` gives everything, text that may still change too.

    Read it in one of these ways, once. Leaving an `async with` block early cancels the request. Audio from a file is
    read beside the event loop.

    Attributes:
        heard: what has come so far.
    """

    def __init__(self, start: AsyncStart, config: t.StreamTranscribeRequest, audio: AsyncAudio) -> None:
        self.heard = Heard()
        self._audio = audio
        self._may_send = asyncio.Event()
        self._failure: Exception | None = None
        self._call = start(self._requests(config))
        self._call.add_done_callback(lambda _: self._may_send.set())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncGenerator[str]:
        """Yield the text of final segments.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read.
        """
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, t.Segment) and event.final:
                    yield event.stable_text

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the messages of the contract's events; the last, at the end, is `TranscriptionCompleted`.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read. What the audio's own iterator raises comes here, too.
        """
        try:
            async for response in self._call:
                event = self.heard.take(response)
                if self.heard.ready is not None:
                    self._may_send.set()
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            raise failure_of(error) from error
        except asyncio.CancelledError:
            failure = self._failure or cancelled_by_hand()
            if failure is not None:
                raise failure from None
            raise
        finally:
            self.cancel()

    async def result(self) -> Heard:
        """Wait for the end, and return the whole.

        Raises:
            PomonaError: the call failed.
            OSError: the audio's file cannot be read.
        """
        async for _ in self.events():
            pass
        return self.heard

    def cancel(self) -> None:
        """End the request; of one that is complete nothing changes. Who reads it meets a `PomonaError`."""
        self._call.cancel()

    async def _requests(self, config: t.StreamTranscribeRequest) -> AsyncIterator[t.StreamTranscribeRequest]:
        """Yield the config, then, once the model is ready, the audio."""
        yield config
        await self._may_send.wait()  # until the call ends at most, which its deadline sees to
        try:
            async for chunk in self._chunks():
                yield t.StreamTranscribeRequest(audio=chunk)
        except Exception as error:  # noqa: BLE001 - what the caller's audio raises, where nobody would hear of it
            # What came so far must not pass for the whole.
            self._failure = error
            self._call.cancel()

    async def _chunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._audio, AsyncIterator):
            async for piece in self._audio:
                for chunk in chunks([piece]):
                    yield chunk
            return
        source = chunks(self._audio, self.heard.ready.preferred_chunk_bytes if self.heard.ready else 0)
        while (chunk := await asyncio.to_thread(next, source, None)) is not None:
            yield chunk
