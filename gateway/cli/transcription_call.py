"""One call of `StreamTranscribe`: the config goes up, then, once the model is ready, the audio; events come down."""

import threading
from collections.abc import Callable, Iterator

import grpc
from pomona.v1 import transcription_pb2

from gateway.cli.audio_source import AudioSource, UnreadableAudio
from gateway.cli.connection import Connection
from gateway.cli.failures import failure_of

CHUNK_BYTES = 64 * 1024
# The server takes no larger message.
MAX_CHUNK_BYTES = 1024 * 1024

Take = Callable[[transcription_pb2.StreamTranscribeResponse], None]


class Upload:
    """The requests of a call, read by gRPC's own thread no faster than the server takes them.

    Args:
        start: the first of them, with the envelope and the config.
        source: the audio.
        frame_bytes: what is never cut: a sample of every channel of raw samples; 1 for a container.

    Attributes:
        is_sent: whether all audio has left.
        failure: why reading the audio failed.
    """

    def __init__(
        self, start: transcription_pb2.StreamTranscribeRequest, source: AudioSource, frame_bytes: int = 1
    ) -> None:
        self.is_sent = False
        self.failure: UnreadableAudio | None = None
        self._start = start
        self._source = source
        self._frame_bytes = frame_bytes
        self._may_send = threading.Event()
        self._is_ended = False
        self._chunk_bytes = CHUNK_BYTES
        self._abandon: Callable[[], object] = self.end

    def begin(self, preferred_chunk_bytes: int, abandon: Callable[[], object]) -> None:
        """Let the audio go, in chunks of the size that the server likes; `abandon` is called where reading fails."""
        if preferred_chunk_bytes:
            self._chunk_bytes = min(preferred_chunk_bytes, MAX_CHUNK_BYTES)
        self._abandon = abandon
        self._may_send.set()

    def end(self) -> None:
        """Send nothing more."""
        self._is_ended = True
        self._may_send.set()

    def requests(self) -> Iterator[transcription_pb2.StreamTranscribeRequest]:
        """Yield the config, wait until the model is ready, then yield the audio."""
        yield self._start
        self._may_send.wait()
        try:
            for chunk in self._source.chunks(self._chunk_bytes, self._frame_bytes):
                if self._is_ended:
                    return
                yield transcription_pb2.StreamTranscribeRequest(audio=chunk)
            self.is_sent = True
        except UnreadableAudio as error:
            # What came so far must not pass for the whole.
            self.failure = error
            self._abandon()


def stream_transcription(connection: Connection, upload: Upload, take: Take) -> None:
    """Send the audio and have `take` called with each answer; leaving early, by Ctrl-C too, cancels the call.

    Raises:
        ServerError: the call failed.
        UnreadableAudio: reading the audio failed.
    """
    call = connection.transcription.StreamTranscribe(
        upload.requests(), timeout=connection.timeout_s, metadata=connection.metadata
    )
    try:
        for response in call:
            if response.event.HasField("ready"):
                upload.begin(response.event.ready.preferred_chunk_bytes, call.cancel)
            take(response)
    except grpc.RpcError as error:
        raise upload.failure or failure_of(error, connection.address) from error
    finally:
        upload.end()
        call.cancel()
