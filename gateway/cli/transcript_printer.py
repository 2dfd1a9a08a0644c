"""What is printed of a transcription while it goes on, and at its end: text, one document, or every event."""

import json
from typing import Any, Protocol

from pomona.v1 import transcription_pb2

from gateway.cli import output
from gateway.cli.captions import Captions
from gateway.cli.failures import CliError
from gateway.cli.spans import seconds_of
from gateway.cli.subtitles import Subtitles
from gateway.cli.transcript import Transcript
from gateway.cli.transcript_files import Destination


class Printer(Protocol):
    """Prints one transcription."""

    def take(self, response: transcription_pb2.StreamTranscribeResponse) -> None:
        """Print what is new."""
        ...

    def end(self, error: CliError | None) -> None:
        """Print what stands at the end, also where `error` broke it off."""
        ...


class TextPrinter:
    """Prints final segments as they come.

    Args:
        subtitles: how they are written.
        destination: where.
        title: a line above them; empty for none.
    """

    def __init__(self, subtitles: Subtitles, destination: Destination, title: str = "") -> None:
        self._subtitles = subtitles
        self._destination = destination
        self._head = (f"{title}\n" if title else "") + subtitles.header

    def take(self, response: transcription_pb2.StreamTranscribeResponse) -> None:
        """Print a final segment."""
        segment = response.event.segment
        if segment.final and (text := self._subtitles.add(segment)):
            self._write(text)

    def end(self, error: CliError | None) -> None:
        """Print what an empty file of this kind has, where nothing was said and all is well."""
        if error is None:
            self._write("")

    def _write(self, text: str) -> None:
        self._destination.write(self._head + text)
        self._head = ""


class CaptionPrinter:
    """Prints final segments as lines on a terminal, and below them what may still change."""

    def __init__(self, subtitles: Subtitles) -> None:
        self._subtitles = subtitles
        self._captions = Captions()

    def take(self, response: transcription_pb2.StreamTranscribeResponse) -> None:
        """Show a segment."""
        if response.event.HasField("progress"):
            self._captions.show_lag(seconds_of(response.event.progress.lag))
        elif response.event.HasField("segment"):
            segment = response.event.segment
            self._captions.take(segment, self._subtitles.add(segment) if segment.final else "")

    def say(self, text: str) -> None:
        """Show a line about the stream."""
        self._captions.say(text)

    def end(self, error: CliError | None) -> None:  # noqa: ARG002 a protocol's
        """Leave the lines."""
        self._captions.close()


class DocumentPrinter:
    """Prints one JSON object at the end: what the unary method would answer, and why it broke off where it did.

    Args:
        transcript: what came so far.
        destination: where; a file is made only where there is something, or all is well.
        name: of the recording.
        is_line: whether the object is one line.
    """

    def __init__(self, transcript: Transcript, destination: Destination, name: str, *, is_line: bool) -> None:
        self._transcript = transcript
        self._destination = destination
        self._name = name
        self._indent = None if is_line else 2

    def take(self, response: transcription_pb2.StreamTranscribeResponse) -> None:
        """Wait for the end."""

    def end(self, error: CliError | None) -> None:
        """Print the object."""
        response = self._transcript.response
        if error is not None and self._destination.is_file and not response.segments:
            return
        document = {"file": self._name, **output.as_dict(response)}
        if error is not None:
            document["error"] = error.as_dict()
        self._destination.write(_json(document, self._indent))


class EventPrinter:
    """Prints every event as a line of JSON; the last is an error where it broke off."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def take(self, response: transcription_pb2.StreamTranscribeResponse) -> None:
        """Print the event."""
        self._destination.write(_json(output.as_dict(response)))

    def end(self, error: CliError | None) -> None:
        """Print the error, if there is one."""
        if error is not None:
            self._destination.write(_json({"error": error.as_dict()}))


def _json(document: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"
