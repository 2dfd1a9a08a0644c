"""`transcribe` with its real server, worker and Whisper base."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.demo_speech import CLIP
from tests.support.served import served
from tests.support.whisper_base import whisper_base_path

pytestmark = pytest.mark.real
COMMAND = (sys.executable, "-P", "-m", "gateway", "transcribe")
SAID = "He was not an ill-disposed young man."
SAMPLES = CLIP.read_bytes()[44:]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served("--model", f"whisper={whisper_base_path()}") as running:
        yield running.address


def pomona(*arguments: str, sound: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([*COMMAND, *arguments], input=sound, capture_output=True, check=False, timeout=50)


def test_recordings_become_subtitles_and_what_is_none_is_told(address: str, tmp_path: Path) -> None:
    (tmp_path / "noise.mp3").write_bytes(bytes(range(256)) * 40)
    done = pomona(
        str(tmp_path / "noise.mp3"),
        str(CLIP),
        "--words",
        "-o",
        f"{tmp_path}/out/",
        "--format",
        "srt",
        "--server",
        address,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"noise.mp3: INVALID_ARGUMENT AUDIO_UNDECODABLE: " in done.stderr
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["austen.srt"]
    cues = (tmp_path / "out" / "austen.srt").read_text().split("\n\n")
    assert cues.pop() == ""
    assert " ".join(cue.split("\n")[2] for cue in cues).replace(" -", "-") == SAID


def test_samples_of_a_pipe_are_told_with_all_that_is_known(address: str) -> None:
    done = pomona(
        "-", "--pcm", "s16le:16000", "--language", "en-GB", "--format", "json", "--server", address, sound=SAMPLES
    )
    document = json.loads(done.stdout)
    assert (document["text"], document["languageCode"], document["file"]) == (SAID, "en", "standard input")
    assert document["usage"]["audioDuration"].startswith("2.9")
    assert document["usage"]["decodedTokens"] > 5


def test_live_speech_becomes_a_line(address: str) -> None:
    done = pomona("--live", "--pcm", "s16le:16000:1", "-", "--server", address, sound=SAMPLES)
    assert (done.returncode, done.stdout.decode()) == (0, f"{SAID}\n"), done.stderr


def test_value_that_only_the_server_knows_to_be_wrong_is_told_by_its_option(address: str) -> None:
    done = pomona(str(CLIP), "--language", "xx", "--server", address)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"INVALID_ARGUMENT INVALID_FIELD: --language: the model does not know 'xx'; it has en, " in done.stderr


def test_folder_of_a_model_is_served_for_the_command(tmp_path: Path) -> None:
    done = pomona(str(CLIP), "--model", str(whisper_base_path()), "-o", str(tmp_path / "talk.txt"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "talk.txt").read_text() == f"{SAID}\n"
