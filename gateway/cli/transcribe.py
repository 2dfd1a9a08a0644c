"""`transcribe`: recordings to text, and speech while it is spoken."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pomona.v1 import transcription_pb2

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, names_server
from gateway.cli.failures import CliError, UsageError
from gateway.cli.speech_server import speech_server
from gateway.cli.transcribe_options import AudioOptions, DecodingOptions, LiveOptions, SpokenOptions
from gateway.cli.transcript_files import destinations, format_name
from gateway.cli.transcription_bounds import check
from gateway.cli.transcription_run import Task, TranscriptionRun
from gateway.cli.verb import verb

# What would end every other recording the same way: the model, the options, the caller, the connection.
HOPELESS_CODES = {"NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION", "UNIMPLEMENTED"}
HOPELESS_REASONS = {"INVALID_FIELD", "UNSUPPORTED_OPTION", "NOT_CONNECTED", "SERVER_DRAINING"}


@verb
def transcribe(
    *,
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Recordings; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Unset: the server's only one that transcribes. Without --server also a folder."
        ),
    ] = None,
    chosen_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="txt|srt|vtt|json|tsv", help="Unset: as --output FILE ends, or else lines of text."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE|FOLDER/", help="Where to; a folder gets a file for each recording."
        ),
    ] = None,
    spoken: SpokenOptions,
    decoding: DecodingOptions,
    audio: AudioOptions,
    live: LiveOptions,
    server: ServerOptions,
) -> None:
    """Turn recordings into text, or speech while it is spoken.

    It takes WAV, FLAC, MP3, Ogg/Opus, MP4/AAC and WebM of any length, and raw
    samples with --pcm. The server is the one of --server or POMONA_SERVER; where
    neither is set, one that runs at the usual address and has a model that
    transcribes; else one is started for this command, with Whisper base or with
    the folder of --model.

    Text goes to standard output as it is heard, progress and figures to standard
    error. Several recordings are taken in turn; one that fails does not stop the
    others. Ctrl-C ends the call and leaves what was finished.

    txt: a line for each segment. srt, vtt: subtitles. tsv: start and end in
    milliseconds, and text. json: a pomona.v1.TranscribeResponse in protobuf's
    JSON form with "file" before it, and "error" behind where it broke off; of
    several recordings a line for each.

    With --live a terminal shows what may still change below the lines that are
    final; a pipe gets final lines only, and with --format json every event: one
    pomona.v1.StreamTranscribeResponse a line, the last with "completed", or an
    {"error": ...}.

    The exit code is 1 where a recording failed, 2 for wrong usage, 130 after
    Ctrl-C.

    Example:
    [bold]pomona transcribe talk.mp3[/bold]
    [bold]pomona transcribe talk.mp4 --language de --beam 5 -o talk.srt[/bold]
    [bold]pomona transcribe *.wav --format vtt --words -o subtitles/[/bold]
    [bold]pomona transcribe call.wav --clips 0:30-1:00 --phrase "Wren Abara"[/bold]
    [bold]ffmpeg -i video.mkv -f wav - | pomona transcribe - --format json[/bold]
    [bold]arecord -q -f S16_LE -r 16000 -c 1 -t raw | pomona transcribe --live --pcm s16le:16000:1 -[/bold]
    """
    name = format_name(chosen_format, to)
    places = destinations(files, to, name)
    if live.live and len(files) != 1:
        raise UsageError("--live takes one FILE, such as - for a pipe")
    config = _config((spoken, decoding, audio), live, is_program=name == "json", is_screen=places[0].is_screen)
    task = Task(config, audio.pcm_format(), name, is_single=len(files) == 1)
    outcome = _Outcome()
    runs = list(outcome.readable(TranscriptionRun(task, *each) for each in zip(files, places, strict=True)))
    if runs:
        try:
            with speech_server(server, model, is_chosen=names_server(context)) as speech:
                _transcribe_all(runs, *speech, outcome)
        except CliError as error:
            if name == "json" and not places[0].is_file:
                output.emit({"error": error.as_dict()})
            raise
    if outcome.has_failed:
        raise typer.Exit(1)


class _Outcome:
    """Tells of the recordings that fail.

    Attributes:
        has_failed: whether one did.
    """

    def __init__(self) -> None:
        self.has_failed = False

    def readable(self, runs: Iterable[TranscriptionRun]) -> Iterator[TranscriptionRun]:
        """Yield those whose recording can be read, and tell of the others."""
        for run in runs:
            try:
                run.check()
            except CliError as error:
                run.fail(error)
                self.tell(f"{run.name}: {error}")
            else:
                yield run

    def tell(self, text: str) -> None:
        """Print a failure."""
        output.notice(f"error: {text}")
        self.has_failed = True


def _config(
    groups: Iterable[SpokenOptions | DecodingOptions | AudioOptions],
    live: LiveOptions,
    *,
    is_program: bool,
    is_screen: bool,
) -> transcription_pb2.StreamTranscriptionConfig:
    """Return the config of every request; a program is told of all that happens, a pipe of what is final.

    Raises:
        UsageError: no server takes it.
    """
    config = transcription_pb2.StreamTranscriptionConfig()
    for group in groups:
        group.apply(config.transcription)
    live.apply(config, interim_results=is_program or is_screen)
    config.voice_activity_events = live.live and is_program
    check(config)
    return config


def _transcribe_all(runs: Sequence[TranscriptionRun], connection: Connection, model: str, outcome: _Outcome) -> None:
    for index, run in enumerate(runs):
        try:
            run.transcribe(connection, model)
        except CliError as error:
            is_hopeless = _is_hopeless(error)
            outcome.tell(str(error) if is_hopeless else f"{run.name}: {error}")
            left = len(runs) - index - 1
            if is_hopeless and left:
                output.notice(f"not tried: {left} more")
            if is_hopeless:
                return


def _is_hopeless(error: CliError) -> bool:
    """Say whether every other recording would fail like this; one that ends before a clip is only too short."""
    facts = error.as_dict()
    if ".clips[" in facts["metadata"].get("field", ""):
        return False
    return facts["code"] in HOPELESS_CODES or facts["reason"] in HOPELESS_REASONS
