"""How far a transcription is, on a terminal and elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pomona.v1 import transcription_pb2 as t

from gateway.cli.audio_bar import clock
from tests.support.scripted_server import ScriptedServer, Step

from .listener import Listener, ready, said, segment, span


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (67.9, "1:07"), (3600, "1:00:00"), (360_000, "100:00:00")])
def test_length_of_audio_is_told_as_people_read_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def progress(processed_s: float) -> t.StreamTranscribeResponse:
    told = t.TranscriptionProgress(audio_received=span(90), audio_processed=span(processed_s))
    return t.StreamTranscribeResponse(event=t.TranscriptionEvent(progress=told))


def uploading(requests: Iterator[t.StreamTranscribeRequest]) -> Iterator[Step]:
    """Tell of progress before all audio came, and then of the end of it."""
    next(requests)
    yield ready()
    next(requests)
    yield progress(30)
    for _ in requests:
        pass
    yield progress(60)
    yield said(segment("Good day."))
    yield from list(Listener()(iter([t.StreamTranscribeRequest()])))[1:]


@pytest.fixture
def command(server: ScriptedServer, tmp_path: Path) -> list[str]:
    server.scripts["StreamTranscribe"] = uploading
    # More than gRPC takes before the server reads.
    (tmp_path / "talk [1].wav").write_bytes(bytes(19_200_000))
    arguments = ("transcribe", str(tmp_path / "talk [1].wav"), "--model", "x", "--server", server.address)
    return [sys.executable, "-P", "-m", "gateway", *arguments]


def on_a_terminal(command: list[str], *, has_screen: bool) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; its standard output too, where it has a screen."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdout=theirs if has_screen else subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = bytearray()
        try:
            while read := os.read(ours, 65536):
                shown += read
        except OSError:  # how a terminal ends on Linux
            pass
        os.close(ours)
        printed = "" if process.stdout is None else process.stdout.read().decode()
    assert process.returncode == 0, shown
    return shown.decode(), printed


def test_bar_tells_seconds_of_audio_and_the_total_once_it_is_known(command: list[str]) -> None:
    shown, printed = on_a_terminal(command, has_screen=False)
    assert printed == "Good day.\n"
    assert "talk [1].wav: waiting for the model" in shown
    assert "0:30 " in shown
    assert "0:30 of" not in shown
    assert "1:00 of 1:30" in shown


def test_total_of_raw_samples_is_known_from_their_number(command: list[str]) -> None:
    shown, _ = on_a_terminal([*command, "--pcm", "s16le:16000:1"], has_screen=False)
    assert "0:30 of 10:00" in shown


def test_text_stands_above_the_bar(command: list[str]) -> None:
    shown, _ = on_a_terminal(command, has_screen=True)
    before, text, after = shown.partition("Good day.\r\n")
    assert text
    assert before.endswith("\x1b[2K")
    assert "1:00 of 1:30" in after


def test_speaker_is_told_when_to_begin(command: list[str]) -> None:
    shown, _ = on_a_terminal([*command, "--live"], has_screen=False)
    _, listening, after = shown.partition("listening; Ctrl-C ends it\r\n")
    assert listening
    assert " of " not in after.partition("[")[0]


def test_there_is_no_bar_elsewhere(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert (done.stdout, done.stderr.count("\n")) == ("Good day.\n", 1)
