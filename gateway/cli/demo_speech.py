"""The speaking part of `demo`: a short recording, transcribed."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from pomona.v1 import model_pb2, transcription_pb2

from gateway.cli import output
from gateway.cli.audio_source import open_audio
from gateway.cli.connection import Connection
from gateway.cli.demo_models import WHISPER_BASE
from gateway.cli.load import load_with_progress
from gateway.cli.progress import display
from gateway.cli.subtitles import Subtitles
from gateway.cli.transcript import Transcript
from gateway.cli.transcript_files import Destination
from gateway.cli.transcript_printer import TextPrinter
from gateway.cli.transcription_call import Upload, stream_transcription

# Public domain; see the page beside it.
CLIP = Path(__file__).with_name("demo_clip") / "austen.wav"


def transcribe_clip(connection: Connection, *, quiet: bool) -> dict[str, Any]:
    """Load Whisper base, transcribe the clip, and return what came of it.

    Args:
        connection: to a server that has it.
        quiet: whether to print nothing.
    """
    begin = time.monotonic()
    load_with_progress(
        connection, model_pb2.LoadModelRequest(model=WHISPER_BASE), None if quiet else display(WHISPER_BASE)
    )
    loaded = time.monotonic()
    if not quiet:
        output.notice(f"transcribing {CLIP.name}, three seconds of a reading")
    transcript = Transcript()
    with closing(Destination()) as destination, open_audio(CLIP) as source:
        printer = TextPrinter(Subtitles("txt"), destination)

        def take(response: transcription_pb2.StreamTranscribeResponse) -> None:
            transcript.take(response.event)
            if not quiet:
                printer.take(response)

        start = transcription_pb2.StreamTranscribeRequest(model=WHISPER_BASE)
        start.config.mode = transcription_pb2.StreamTranscriptionConfig.MODE_FILE
        stream_transcription(connection, Upload(start, source), take)
    took_s = time.monotonic() - loaded
    if not quiet:
        output.notice(transcript.summary(took_s))
    return {
        "model": WHISPER_BASE,
        "text": transcript.response.text.strip(),
        "audio_s": transcript.audio_s,
        "transcribe_s": took_s,
        "real_time_factor": took_s / transcript.audio_s if transcript.audio_s else None,
        "load_s": loaded - begin,
    }
