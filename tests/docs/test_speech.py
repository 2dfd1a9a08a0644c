"""What `docs/speech.md` says: its tables, and its examples as they stand, with Whisper base."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from pomona.v1 import transcription_pb2 as t

from gateway.cli.demo_speech import CLIP
from gateway.cli.transcript_files import FORMATS
from gateway.sections.grpc import GrpcSettings
from gateway.sections.limits import LimitSettings
from gateway.sections.worker import WorkerDefaults
from tests.docs.page import ROOT, Page, attempt, run, run_node, run_python
from tests.gateway.cli.listener import ready, said, segment
from tests.support.scripted_server import Fail, ScriptedServer, Step
from tests.support.served import served
from tests.support.whisper_base import whisper_base_path
from worker.speech import asking, reading
from worker.speech.options import FILE_BEAMS, LiveOptions, SpeechOptions

PAGE = Page("speech.md")
SAID = r"He was not an ill[- ]disposed young man\.?"
WORDS = r"(\d\.\d\d \S+\n){7,9}"
RECORDING = rf"text: {SAID}\n{WORDS}segment: {SAID}\nseconds: 2\.99\d*\nrefused: AUDIO_UNDECODABLE audio\n"
LIVE = rf"(so far: .*\n)*final: {SAID}\n"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served("--model", f"whisper={whisper_base_path()}") as running:
        yield running.address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the examples read."""
    shutil.copyfile(CLIP, tmp_path / "speech.wav")
    return tmp_path


@pytest.mark.real
def test_python_example_runs_as_it_stands(address: str, folder: Path) -> None:
    printed = run_python(address, folder, *PAGE.blocks("python"))
    assert re.fullmatch(RECORDING + LIVE, printed), printed


@pytest.mark.real
def test_node_example_runs_as_it_stands(address: str, folder: Path) -> None:
    printed = run_node(address, folder, *PAGE.blocks("js"))
    assert re.fullmatch(rf"segment: [\d.]+ to [\d.]+, \d words: {SAID}\ntext: {SAID}\n", printed), printed


class Breaking:
    """A server whose streams end early, each in another way, but for the last."""

    def __init__(self) -> None:
        self.starts: list[t.StreamTranscribeRequest] = []
        self.audio: list[bytes] = []

    def __call__(self, requests: Iterator[t.StreamTranscribeRequest]) -> Iterator[Step]:
        number = len(self.starts)
        self.starts.append(next(requests))
        if number == 0:
            yield Fail(grpc.StatusCode.UNAVAILABLE, "it loads", "MODEL_LOADING")
        yield ready()
        if number == 3:
            self.audio.append(b"".join(request.audio for request in requests))
            yield said(segment("Three.", 2, 2.9, number=9))
            yield t.StreamTranscribeResponse(event=t.TranscriptionEvent(completed=t.TranscriptionCompleted()))
            return
        heard = b""
        while len(heard) < 32_000 * (3 - number):
            heard += next(requests).audio
        self.audio.append(heard)
        yield said(segment("Once." if number == 1 else "Twice.", number - 1, number, number=6 + number))
        if number == 1:
            yield Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED")
        yield t.StreamTranscribeResponse(event=t.TranscriptionEvent(ending=t.StreamEnding(reason="draining")))


def test_live_example_goes_on_where_its_stream_broke_off(folder: Path) -> None:
    sound = CLIP.read_bytes()[44:]
    with open(folder / "speech.wav", "wb") as file:  # noqa: PTH123
        file.write(CLIP.read_bytes()[:44] + sound + bytes(32_000))
    sound += bytes(32_000)
    head, live = PAGE.blocks("python")[0], next(block for block in PAGE.blocks("python") if "class Tape" in block)
    breaking = Breaking()
    with ScriptedServer({"StreamTranscribe": breaking}) as server:
        printed = run_python(server.address, folder, head, live)
    assert printed == "final: Once.\nfinal: Twice.\nfinal: Three.\n"
    starts = [(each.config.time_offset.ToMilliseconds(), each.config.first_segment_id) for each in breaking.starts]
    assert starts == [(0, 0), (0, 0), (1000, 8), (2000, 9)]
    for begin_s, heard in enumerate(breaking.audio):
        assert sound[32_000 * begin_s :].startswith(heard)
    assert breaking.audio[-1] == sound[64_000:]


def test_live_example_gives_up_where_no_server_comes_back(folder: Path) -> None:
    head, live = PAGE.blocks("python")[0], next(block for block in PAGE.blocks("python") if "class Tape" in block)
    assert "MAX_LOST = 10 " in live
    (folder / "example.py").write_text(f"{head}\n{live.replace('MAX_LOST = 10', 'MAX_LOST = 1')}")
    loading = Fail(grpc.StatusCode.UNAVAILABLE, "it loads", "MODEL_LOADING")
    with ScriptedServer({"StreamTranscribe": [loading]}) as server:
        done = attempt(server.address, sys.executable, "-P", "example.py", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("lost, and tried again: it loads\nTraceback")
    assert len(server.calls) == 2


@pytest.mark.real
def test_whisper_base_is_put_together_as_the_pages_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(block for block in PAGE.blocks("sh") if "whisper_base" in block).strip()
    assert f"`{line}`" in (ROOT / "README.md").read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python, *arguments = shlex.split(line)
    printed = run("", sys.executable, *arguments, cwd=ROOT)
    assert (python, printed) == ("python", f"{tmp_path}/pomona/whisper-base\n")
    assert (Path(printed.strip()) / "model.bin").stat().st_size > 100 << 20


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table under a header row that begins with `title`."""
    table = PAGE.text.partition(f"\n| {title} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("field", t.TranscriptionConfig.DESCRIPTOR),
        ("event", t.TranscriptionEvent.DESCRIPTOR),
    ],
)
def test_every_field_is_told(title: str, message: Descriptor) -> None:
    told = [re.sub("`", "", row[0]) for row in rows(title)]
    assert sorted(told) == sorted(field.name for field in message.fields if field.name != "event_number")


def test_every_field_of_a_stream_is_told() -> None:
    table = PAGE.text.partition("And of `StreamTranscriptionConfig`:")[2].partition("\n\n*")[0]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(told) == sorted(field.name for field in t.StreamTranscriptionConfig.DESCRIPTOR.fields)


def test_every_format_is_told() -> None:
    assert {row[0].strip("`") for row in rows("format")} == set(FORMATS)


def between(name: str) -> str:
    low, high = reading.RANGES[name]
    return f"{low:g} to {high:g}"


DEFAULTS = SpeechOptions()
WORKER = WorkerDefaults()


@pytest.mark.parametrize(
    "words",
    [
        f"| 0, then 0.2 to 1 while a text is not believed | {between('temperature')} |",
        f"| `beam_size` | `--beam N` | {FILE_BEAMS} where `temperature` is unset too; live and else "
        f"{DEFAULTS.num_beams}, which is greedy | {between('beam_size')}, at temperature 0 |",
        f"| `best_of` | `--best-of N` | {DEFAULTS.best_of} | {between('best_of')}, above temperature 0 |",
        f"| {DEFAULTS.patience:g} | above 0, up to {reading.RANGES['patience'][1]:g}, with beams |",
        f"| {between('length_penalty')}, with beams or best-of |",
        f"| {DEFAULTS.max_compression_ratio} | above 0, up to {reading.RANGES['compression_ratio_threshold'][1]:g} |",
        f"| {DEFAULTS.min_avg_logprob:g} | {between('avg_logprob_threshold')} |",
        f"| {DEFAULTS.max_no_speech_prob} | {between('no_speech_threshold')} |",
        f"| up to {reading.MAX_PROMPT_BYTES >> 10} KiB;",
        f"| up to {reading.MAX_PHRASES}, each up to {reading.MAX_PHRASE_BYTES} bytes |",
        f"| up to {reading.MAX_CLIPS:,}, in order",
        f"| {DEFAULTS.max_alternatives} | 0 to {reading.MAX_ALTERNATIVES}, with beams or best-of |",
        f"{reading.MIN_RATE_HZ} to {reading.MAX_RATE_HZ} Hz, 1 to {reading.MAX_CHANNELS} channels |",
        f"| {LiveOptions().utterance_end_s} s | {asking.MIN_SILENCE_S} to {asking.MAX_SILENCE_S:g} s, live |",
        f"| {LiveOptions().interim_interval_s} s | {asking.MIN_INTERVAL_S} to {asking.MAX_INTERVAL_S:g} s, live, with",
        f"| the server's: {WORKER.audio_idle_s:g} s | {asking.MIN_IDLE_S} to {asking.MAX_IDLE_S:,.0f} s |",
        f"stands for silence, up to {asking.MAX_SKIP_S / 3600:g} h a message",
        f"a message over {asking.MAX_CHUNK_BYTES >> 20} MiB is refused",
        f"| a message | {GrpcSettings().max_request_bytes >> 20} MiB |",
        f"| audio of a request | {WORKER.max_audio_s:,.0f} s |",
        f"| {WORKER.max_audio_bytes >> 30} GiB as it comes, {WORKER.max_audio_decoded_bytes >> 30} GiB decoded |",
        f"| a stream that sends nothing | {WORKER.audio_idle_s:g} s |",
        f"| a whole request | {LimitSettings().max_request_s:,.0f} s |",
    ],
)
def test_every_default_and_limit_is_told(words: str) -> None:
    assert words in PAGE.words
