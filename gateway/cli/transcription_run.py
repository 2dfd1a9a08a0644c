"""One recording after another: opened, sent, printed as it is heard, and accounted for."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pomona.v1 import transcription_pb2

from gateway.cli import output
from gateway.cli.audio_bar import AudioBar
from gateway.cli.audio_source import check_audio, open_audio, shown_name
from gateway.cli.connection import Connection
from gateway.cli.failures import CliError, Interrupted, ServerError, StatusFacts
from gateway.cli.raw_pcm import PcmFormat
from gateway.cli.spans import seconds_of
from gateway.cli.subtitles import Subtitles
from gateway.cli.transcript import Transcript
from gateway.cli.transcript_files import Destination
from gateway.cli.transcript_printer import CaptionPrinter, DocumentPrinter, EventPrinter, Printer, TextPrinter
from gateway.cli.transcription_call import Upload, stream_transcription


@dataclass(frozen=True, slots=True)
class Task:
    """What is wanted of every recording of one command.

    Attributes:
        config: of each request.
        pcm: the format of raw samples; None for containers.
        format_name: of the transcripts.
        is_single: whether there is one recording only.
    """

    config: transcription_pb2.StreamTranscriptionConfig
    pcm: PcmFormat | None
    format_name: str
    is_single: bool

    @property
    def is_live(self) -> bool:
        """Whether it is transcribed while it is spoken."""
        return self.config.mode == transcription_pb2.StreamTranscriptionConfig.MODE_LIVE

    def printer(self, name: str, destination: Destination, transcript: Transcript) -> Printer:
        """Return what prints the transcript of the recording of that name."""
        if self.format_name == "json":
            if self.is_live:
                return EventPrinter(destination)
            return DocumentPrinter(transcript, destination, name, is_line=not self.is_single)
        separate = transcription_pb2.RawPcm.CHANNEL_MODE_SEPARATE
        has_channels = self.config.transcription.format.pcm.channel_mode == separate
        subtitles = Subtitles(
            self.format_name,
            words_apart=self.config.transcription.word_timestamps,
            has_channels=has_channels,
        )
        if self.config.interim_results:
            return CaptionPrinter(subtitles)
        has_title = self.format_name == "txt" and not self.is_single and not destination.is_file
        return TextPrinter(subtitles, destination, f"--- {name}" if has_title else "")


class TranscriptionRun:
    """The transcription of one recording.

    Args:
        task: what is wanted.
        file: the recording.
        destination: where its transcript goes.

    Attributes:
        name: of the recording, for people.
    """

    def __init__(self, task: Task, file: Path, destination: Destination) -> None:
        self._task = task
        self.name = shown_name(file)
        self._file = file
        self._destination = destination
        self._transcript = Transcript()
        self._printer = task.printer(self.name, destination, self._transcript)
        self._ready_s = time.monotonic()

    def check(self) -> None:
        """See whether there is something to read, without reading it.

        Raises:
            CliError: there is not.
        """
        check_audio(self._file)

    def transcribe(self, connection: Connection, model: str) -> None:
        """Transcribe it; Ctrl-C cancels the call and leaves what is finished.

        Raises:
            CliError: it cannot be read, the call failed, or the transcript cannot be written.
        """
        with closing(self._destination):
            try:
                self._stream(connection, model)
                self._printer.end(None)
            except CliError as error:
                self.fail(error)
                raise
            except KeyboardInterrupt:
                self.fail(Interrupted("ended by Ctrl-C"))
                raise
        summary = self._transcript.summary(None if self._task.is_live else time.monotonic() - self._ready_s)
        output.notice(summary if self._task.is_single else f"{self.name}: {summary}")

    def fail(self, error: CliError) -> None:
        """Print what there is, and for programs why there is no more."""
        self._printer.end(error)

    def _stream(self, connection: Connection, model: str) -> None:
        start = transcription_pb2.StreamTranscribeRequest(model=model, config=self._task.config)
        pcm = self._task.pcm
        with open_audio(self._file) as source:
            total_s = pcm.seconds(source.size) if pcm is not None and source.size is not None else None
            upload = Upload(start, source, 1 if pcm is None else pcm.frame_bytes)
            with closing(AudioBar(Path(self.name).name, total_s)) as bar:

                def take(response: transcription_pb2.StreamTranscribeResponse) -> None:
                    self._take(response, bar, is_sent=upload.is_sent)

                stream_transcription(connection, upload, take)
        if not self._transcript.is_complete:
            raise ServerError(StatusFacts("INTERNAL", "the server ended the stream early", "INCOMPLETE"))

    def _take(self, response: transcription_pb2.StreamTranscribeResponse, bar: AudioBar, *, is_sent: bool) -> None:
        event = response.event
        self._transcript.take(event)
        if event.HasField("ready"):
            self._ready_s = time.monotonic()
            bar.begin(is_live=self._task.is_live)
        elif event.HasField("progress"):
            bar.update(event.progress, is_sent=is_sent)
        elif event.HasField("ending"):
            self._say(f"the server ends this in {seconds_of(event.ending.remaining):g} s: {event.ending.reason}")
        self._printer.take(response)

    def _say(self, text: str) -> None:
        if isinstance(self._printer, CaptionPrinter):
            self._printer.say(text)
        else:
            output.notice(text)
