"""`transcribe`: what it sends, prints, writes and says."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from pomona.v1 import model_pb2 as m
from pomona.v1 import transcription_pb2 as t

from tests.support.scripted_server import Fail, Hold, ScriptedServer, Step

from .conftest import Run, start
from .listener import Listener, listen, ready, said, segment, word

TALK = b"RIFF" + bytes(range(256)) * 4
TWO = (segment(" Good day.", 0, 1.25), segment(" Goodbye.", 1.25, 2, number=1))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recording in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(TALK)
    return tmp_path


def test_text_goes_to_standard_output_and_figures_to_standard_error(
    folder: Path, server: ScriptedServer, run: Run
) -> None:
    listener = listen(server, *TWO)
    result = run("transcribe", "talk.wav")
    assert (result.exit_code, result.stdout) == (0, "Good day.\nGoodbye.\n")
    assert result.stderr.startswith("[2.0 s of audio, 1.5 s of speech, en, 7 tokens, 0.")
    assert "real-time factor 0." in result.stderr
    assert b"".join(listener.audio[0]) == TALK


def test_only_model_that_transcribes_is_taken(folder: Path, server: ScriptedServer, run: Run) -> None:
    listener = listen(server)
    run("transcribe", "talk.wav")
    assert listener.starts[0].model == "ears"
    run("transcribe", "talk.wav", "--model", "other")
    assert listener.starts[1].model == "other"


@pytest.mark.parametrize(
    ("names", "words"),
    [((), "has no model that transcribes"), (("a", "b"), "several models transcribe: add --model with one of a, b")],
)
def test_where_there_is_not_one_such_model_a_name_is_asked_for(
    folder: Path, server: ScriptedServer, run: Run, names: tuple[str, ...], words: str
) -> None:
    listed = [m.Model(model=name, tasks=[m.Model.TASK_TRANSCRIBE]) for name in names]
    server.scripts["ListModels"] = [m.ListModelsResponse(models=listed)]
    result = run("transcribe", "talk.wav")
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_audio_goes_in_chunks_that_the_server_likes(folder: Path, server: ScriptedServer, run: Run) -> None:
    audio = os.urandom(200_000)
    (folder / "talk.wav").write_bytes(audio)
    for asked, sent in ((0, 65536), (1000, 1000), (1 << 30, 200_000)):
        listener = listen(server, chunk_bytes=asked)
        run("transcribe", "talk.wav")
        (chunks,) = listener.audio
        assert (b"".join(chunks) == audio, max(map(len, chunks))) == (True, sent)


def test_frames_of_raw_samples_are_never_cut(folder: Path, server: ScriptedServer, run: Run) -> None:
    listener = listen(server, chunk_bytes=100)
    run("transcribe", "talk.wav", "--pcm", "s16le:16000:3")
    (chunks,) = listener.audio
    assert b"".join(chunks) == TALK[: len(TALK) // 6 * 6]
    assert {len(chunk) % 6 for chunk in chunks} == {0}


def test_no_audio_leaves_before_the_model_is_ready(folder: Path, server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [m.ListModelsResponse()]
    server.scripts["StreamTranscribe"] = [Fail(grpc.StatusCode.NOT_FOUND, "no such model", "MODEL_NOT_FOUND")]
    result = run("transcribe", "talk.wav", "--model", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: NOT_FOUND MODEL_NOT_FOUND: no such model")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.wav", "missing.wav: cannot be read: No such file or directory"),
        ("sub", "sub: is a folder; name the files in it"),
        ("empty.wav", "empty.wav: is empty"),
    ],
)
def test_what_cannot_be_read_is_told_and_needs_no_server(folder: Path, run: Run, name: str, words: str) -> None:
    (folder / "sub").mkdir()
    (folder / "empty.wav").touch()
    result = run("transcribe", name, address="127.0.0.1:1")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {words}\n")


def test_recording_that_fails_does_not_stop_the_others(folder: Path, server: ScriptedServer, run: Run) -> None:
    (folder / "noise.wav").write_bytes(b"noise")
    undecodable = Fail(grpc.StatusCode.INVALID_ARGUMENT, "this is no audio", "AUDIO_UNDECODABLE")
    scripts = iter([Listener(undecodable), Listener(segment("Good day."))])
    listen(server)

    def script(requests: Iterator[t.StreamTranscribeRequest]) -> Iterator[Step]:
        return next(scripts)(requests)

    server.scripts["StreamTranscribe"] = script
    result = run("transcribe", "noise.wav", "missing.wav", "talk.wav")
    assert (result.exit_code, result.stdout) == (1, "--- talk.wav\nGood day.\n")
    first, second, third = result.stderr.splitlines()
    assert first == "error: missing.wav: cannot be read: No such file or directory"
    assert second == "error: noise.wav: INVALID_ARGUMENT AUDIO_UNDECODABLE: this is no audio"
    assert third.startswith("talk.wav: [2.0 s of audio")


def test_failure_that_would_meet_every_recording_ends_the_command(
    folder: Path, server: ScriptedServer, run: Run
) -> None:
    server.scripts["StreamTranscribe"] = [Fail(grpc.StatusCode.INVALID_ARGUMENT, "no", "UNSUPPORTED_OPTION")]
    result = run("transcribe", "talk.wav", "talk.wav", "talk.wav", "--model", "x")
    assert (result.exit_code, len(server.calls)) == (1, 1)
    assert result.stderr == "error: INVALID_ARGUMENT UNSUPPORTED_OPTION: no\nnot tried: 2 more\n"


def test_recording_that_ends_before_a_clip_does_not_stop_the_others(
    folder: Path, server: ScriptedServer, run: Run
) -> None:
    field = {"field": "config.transcription.clips[0].start_offset"}
    server.scripts["StreamTranscribe"] = [
        Fail(grpc.StatusCode.INVALID_ARGUMENT, "it ends", "INVALID_FIELD", metadata=field)
    ]
    result = run("transcribe", "talk.wav", "talk.wav", "--model", "x", "--clips", "90-")
    assert (result.exit_code, len(server.calls)) == (1, 2)
    assert result.stderr == "error: talk.wav: INVALID_ARGUMENT INVALID_FIELD: it ends\n" * 2


def test_what_came_before_a_failure_is_kept(folder: Path, server: ScriptedServer, run: Run) -> None:
    (folder / "talk.srt").write_text("old")
    listen(server, segment("Good day."), Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED"))
    result = run("transcribe", "talk.wav", "-o", "talk.srt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: talk.wav: UNAVAILABLE WORKER_DIED: it died\n"
    assert (folder / "talk.srt").read_text() == "1\n00:00:00,000 --> 00:00:01,000\nGood day.\n\n"


@pytest.mark.parametrize("name", ["talk.txt", "talk.json"])
def test_failure_before_anything_came_leaves_an_older_transcript(
    folder: Path, server: ScriptedServer, run: Run, name: str
) -> None:
    (folder / name).write_text("old")
    listen(server, Fail(grpc.StatusCode.INVALID_ARGUMENT, "this is no audio", "AUDIO_UNDECODABLE"))
    assert run("transcribe", "talk.wav", "-o", name).exit_code == 1
    assert (folder / name).read_text() == "old"


def test_stream_that_ends_without_its_last_event_is_a_failure(folder: Path, server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamTranscribe"] = [ready(), said(segment("Half."))]
    result = run("transcribe", "talk.wav", "--model", "x")
    assert (result.exit_code, result.stdout) == (1, "Half.\n")
    assert "INTERNAL INCOMPLETE: the server ended the stream early" in result.stderr


def test_program_reads_the_whole_response(folder: Path, server: ScriptedServer, run: Run) -> None:
    listen(server, segment(" Good day.", 0, 1.25, words=[word(" Good", 0, 0.5), word(" day.", 0.5, 1.25)]))
    document = json.loads(run("transcribe", "talk.wav", "--format", "json", "--words").stdout)
    assert set(document) == {"file", "requestId", "text", "segments", "languageCode", "resolvedModel", "usage"}
    assert (document["file"], document["text"], document["languageCode"]) == ("talk.wav", " Good day.", "en")
    assert document["segments"][0]["words"][1]["endOffset"] == "1.250s"
    assert document["usage"]["audioDuration"] == "2s"


def test_program_reads_a_line_for_each_of_several_recordings(folder: Path, server: ScriptedServer, run: Run) -> None:
    listen(server, segment("Good day."))
    result = run("transcribe", "talk.wav", "missing.wav", "--format", "json")
    missing, talk = map(json.loads, result.stdout.splitlines())
    assert (missing["file"], missing["error"]["code"], missing["text"]) == ("missing.wav", "INVALID_ARGUMENT", "")
    assert (talk["file"], talk["text"], "error" in talk) == ("talk.wav", "Good day.", False)


def test_program_reads_why_a_transcript_broke_off_and_what_came_of_it(
    folder: Path, server: ScriptedServer, run: Run
) -> None:
    listen(server, segment("Good day."), Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED"))
    result = run("transcribe", "talk.wav", "--format", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["text"], document["error"]["reason"]) == (1, "Good day.", "WORKER_DIED")


def test_program_reads_that_there_is_no_server(folder: Path, run: Run) -> None:
    result = run("transcribe", "talk.wav", "--format", "json", address="127.0.0.1:1")
    assert (result.exit_code, json.loads(result.stdout)["error"]["reason"]) == (1, "NOT_CONNECTED")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("txt", "Good day.\nGoodbye.\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,250\nGood day.\n\n2\n00:00:01,250 --> 00:00:02,000\nGoodbye.\n\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nGood day.\n\n00:00:01.250 --> 00:00:02.000\nGoodbye.\n\n"),
        ("tsv", "start\tend\ttext\n0\t1250\tGood day.\n1250\t2000\tGoodbye.\n"),
    ],
)
def test_output_is_in_the_format_that_its_name_ends_in(
    folder: Path, server: ScriptedServer, run: Run, name: str, text: str
) -> None:
    listen(server, *TWO)
    assert run("transcribe", "talk.wav", "-o", f"other.{name.upper()}").stdout == ""
    assert (folder / f"other.{name.upper()}").read_text() == text
    assert run("transcribe", "talk.wav", "--format", name, "-o", "-").stdout == text


def test_folder_gets_a_file_for_each_recording(folder: Path, server: ScriptedServer, run: Run) -> None:
    (folder / "more.mp3").write_bytes(b"more")
    listen(server, segment("Good day."))
    result = run("transcribe", "talk.wav", "more.mp3", "--format", "vtt", "-o", "out/")
    assert (result.exit_code, result.stdout) == (0, "")
    assert sorted(each.name for each in (folder / "out").iterdir()) == ["more.vtt", "talk.vtt"]


def test_file_that_cannot_be_written_is_told(folder: Path, server: ScriptedServer, run: Run) -> None:
    listen(server, segment("Good day."))
    result = run("transcribe", "talk.wav", "-o", f"{'x' * 300}.txt")
    assert result.exit_code == 1
    assert f"error: talk.wav: --output: cannot write {'x' * 300}.txt: File name too long\n" in result.stderr


def test_recording_of_silence_gives_an_empty_transcript(folder: Path, server: ScriptedServer, run: Run) -> None:
    listen(server)
    assert run("transcribe", "talk.wav", "--format", "vtt").stdout == "WEBVTT\n\n"
    assert json.loads(run("transcribe", "talk.wav", "--format", "json").stdout)["segments"] == []


def test_timeout_is_the_deadline_of_the_call(folder: Path, server: ScriptedServer, run: Run) -> None:
    listen(server, segment("Good day."), Hold())
    result = run("transcribe", "talk.wav", "--timeout", "0.5")
    assert (result.exit_code, result.stdout) == (1, "Good day.\n")
    assert "DEADLINE_EXCEEDED TIMEOUT" in result.stderr


def test_server_that_will_end_the_stream_says_so(folder: Path, server: ScriptedServer, run: Run) -> None:
    ending = t.StreamTranscribeResponse()
    ending.event.ending.reason = "draining"
    ending.event.ending.remaining.FromSeconds(30)
    newer = t.StreamTranscribeResponse.FromString(b"\x0a\x05\x08\x01\xfa\x01\x00")
    server.scripts["StreamTranscribe"] = Listener(ending, newer, segment("Good day."))
    result = run("transcribe", "talk.wav", "--model", "x")
    assert (result.exit_code, result.stdout) == (0, "Good day.\n")
    assert result.stderr.startswith("the server ends this in 30 s: draining\n")


def test_audio_may_come_from_a_pipe(server: ScriptedServer) -> None:
    listener = listen(server, segment("Good day."))
    command = [sys.executable, "-P", "-m", "gateway", "transcribe", "-", "--server", server.address]
    done = subprocess.run(command, input=os.urandom(300_000), capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"Good day.\n")
    assert sum(map(len, listener.audio[0])) == 300_000


def test_audio_may_come_from_a_named_pipe(folder: Path, server: ScriptedServer) -> None:
    listener = listen(server)
    os.mkfifo(folder / "pipe.wav")
    with start("transcribe", "pipe.wav", "--server", server.address) as process:
        (folder / "pipe.wav").write_bytes(TALK)
        process.communicate(timeout=20)
    assert (process.returncode, b"".join(listener.audio[0])) == (0, TALK)


def test_ctrl_c_cancels_the_call_and_leaves_what_was_finished(folder: Path, server: ScriptedServer) -> None:
    listen(server, segment("Good day."), Hold())
    arguments = ("transcribe", "talk.wav", "talk.wav", "--server", server.address)
    with start(*arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "--- talk.wav\n"
        assert process.stdout.readline() == "Good day.\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert (process.returncode, rest, errors) == (130, "", "")
    assert server.call("StreamTranscribe").is_ended_by_client.wait(5)


def test_ctrl_c_ends_a_command_whose_pipe_gives_nothing(server: ScriptedServer) -> None:
    server.scripts["StreamTranscribe"] = lambda requests: [ready(), said(segment("Good day.")), Hold()]
    command = [sys.executable, "-P", "-m", "gateway", "transcribe", "-", "--model", "x", "--format", "json"]
    with subprocess.Popen(
        [*command, "--live", "--server", server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        last = json.loads(process.stdout.read())
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert (lines[1]["event"]["segment"]["stableText"], last["error"]["code"]) == ("Good day.", "CANCELLED")
