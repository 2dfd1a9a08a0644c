"""`transcribe --live`: to a pipe, to a program, and on a terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pomona.v1 import transcription_pb2 as t

from tests.support.scripted_server import ScriptedServer, Step
from tests.support.waiting import wait_until

from .listener import interim, ready, said, segment

LIVE = ("transcribe", "--live", "--pcm", "s16le:16000:1", "-", "--model", "ears")
SOUND = bytes(64_000)
WAIT_S = 10


class Captioner:
    """The script of a server that answers each chunk as it comes, and keeps the last step for the end."""

    def __init__(self, *steps: Step) -> None:
        self.starts: list[t.StreamTranscribeRequest] = []
        self.audio = b""
        self._steps = steps

    def __call__(self, requests: Iterator[t.StreamTranscribeRequest]) -> Iterator[Step]:
        self.starts.append(next(requests))
        yield ready()
        steps = iter(self._steps)
        for request in requests:
            self.audio += request.audio
            yield next(steps)
        yield from steps
        yield t.StreamTranscribeResponse(event=t.TranscriptionEvent(completed=t.TranscriptionCompleted(text="all")))


def progress(lag_s: int) -> t.StreamTranscribeResponse:
    response = t.StreamTranscribeResponse()
    response.event.progress.lag.FromSeconds(lag_s)
    return response


def command(server: ScriptedServer, *more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "gateway", *LIVE, "--server", server.address, *more]


def test_pipe_gets_final_lines_only_and_asks_for_no_others(server: ScriptedServer) -> None:
    server.scripts["StreamTranscribe"] = captioner = Captioner(said(segment(" Good day.")))
    done = subprocess.run(command(server), input=SOUND[:999], capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"Good day.\n")
    expected = t.StreamTranscriptionConfig(mode=t.StreamTranscriptionConfig.MODE_LIVE)
    expected.transcription.format.pcm.encoding = t.RawPcm.ENCODING_S16_LE
    expected.transcription.format.pcm.sample_rate_hz = 16000
    expected.transcription.format.pcm.channel_count = 1
    assert captioner.starts[0].config == expected
    assert captioner.audio == SOUND[:998]


def test_times_of_live_transcription_are_sent(server: ScriptedServer) -> None:
    server.scripts["StreamTranscribe"] = captioner = Captioner()
    times = ("--silence", "1.5", "--interim-interval", "0.25", "--idle-timeout", "60", "--format", "json")
    subprocess.run(command(server, *times), input=b"", capture_output=True, check=True, timeout=20)
    config = captioner.starts[0].config
    assert config.utterance_end_silence.ToMilliseconds() == 1500
    assert config.interim_interval.ToMilliseconds() == 250
    assert config.idle_timeout.ToSeconds() == 60


def test_line_comes_when_it_is_final_and_not_when_a_buffer_is_full(server: ScriptedServer) -> None:
    server.scripts["StreamTranscribe"] = Captioner(said(segment("One.")), said(segment("Two.")))
    with subprocess.Popen(
        command(server), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"One.\n", b"Two.\n"):
            process.stdin.write(SOUND[:320])
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


def test_program_reads_every_event_as_a_line(server: ScriptedServer) -> None:
    steps = (said(interim(" Good", " d")), said(segment(" Good day.")), progress(2))
    server.scripts["StreamTranscribe"] = captioner = Captioner(*steps)
    done = subprocess.run(
        command(server, "--format", "json"), input=SOUND[:4], capture_output=True, check=True, timeout=20
    )
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert [next(name for name in event if name != "eventNumber") for event in events] == [
        *("ready", "segment", "segment", "progress", "completed")
    ]
    assert (events[1]["segment"]["final"], events[1]["segment"]["unstableText"]) == (False, " d")
    config = captioner.starts[0].config
    assert (config.interim_results, config.voice_activity_events) == (True, True)


class Screen:
    """A command whose standard output is a pseudo-terminal."""

    def __init__(self, arguments: list[str]) -> None:
        self._fd, theirs = os.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "10"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE, env=environment
        )
        os.close(theirs)
        os.set_blocking(self._fd, False)
        self.shown = ""

    def hear(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(SOUND[:320])
        self.process.stdin.flush()

    def wait_for(self, text: str) -> str:
        """Wait until `text` is shown, and return what came with it."""
        wait_until(lambda: text in self._read(), timeout_s=WAIT_S)
        before, self.shown = self.shown, ""
        return before

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        wait_until(self._has_ended, timeout_s=WAIT_S)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        with self.process:  # closes its pipes
            self.process.wait(WAIT_S)
        os.close(self._fd)

    def _has_ended(self) -> bool:
        self._read()  # what nobody reads would hold it up
        return self.process.poll() is not None

    def _read(self) -> str:
        try:
            self.shown += os.read(self._fd, 65536).decode(errors="replace")
        except OSError:
            return self.shown
        return self.shown


@pytest.fixture
def screen(server: ScriptedServer) -> Iterator[Screen]:
    steps = (
        said(interim(" Good", " d")),
        said(interim(" Good day", " to")),
        progress(7),
        said(segment(" Good day to you.\x1b[2J")),
    )
    server.scripts["StreamTranscribe"] = Captioner(*steps)
    opened = Screen(command(server))
    yield opened
    opened.close()


def test_terminal_shows_what_may_still_change_in_place(screen: Screen) -> None:
    screen.hear()
    assert "\n" not in screen.wait_for(" d")
    screen.hear()
    again = screen.wait_for(" to")
    assert "\n" not in again
    assert "\x1b[2K" in again
    screen.hear()
    assert screen.wait_for("(7 s behind)").startswith("\r\x1b[2KGood day\x1b[2m to\x1b[0m")
    screen.hear()
    line = screen.wait_for("Good day to you.\N{REPLACEMENT CHARACTER}[2J")
    assert "\x1b[2J" not in line
    assert screen.end() == 0
    assert "day" not in line.rpartition("to you.")[2] + screen.shown
