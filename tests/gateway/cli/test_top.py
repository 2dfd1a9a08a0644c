"""`ps` and `top`: what they show of a server, also on a screen of 80 by 24."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyte
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import common_pb2
from pomona.v1 import model_pb2 as m
from pomona.v1 import server_pb2 as s

from gateway.cli.glance import duration_text
from tests.support.scripted_server import Fail, ScriptedServer
from tests.support.waiting import wait_until

from .conftest import Run

WIDTH, HEIGHT = 80, 24
LIMIT_S = 20.0
GENERATE = "pomona.v1.GenerationService/StreamGenerate"


def ago(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(time.time() - seconds))


def loaded(name: str, **more: Any) -> m.Model:
    worker = m.WorkerInfo(instance_id="i1", pid=4711, start_time=ago(3700))
    memory = m.MemoryUse(footprint_bytes=1_234_000_000)
    return m.Model(model=name, state=m.MODEL_STATE_ACTIVE, workers=[worker], memory=memory, **more)


MODELS = [
    loaded("llama-3.2-3b", pinned=True),
    loaded("org/a-model-with-a-long-name-that-does-not-fit-in-here-at-all", unload_time=ago(-300)),
    m.Model(
        model="whisper",
        state=m.MODEL_STATE_LOADING,
        load_progress=m.LoadProgress(phase="reading", bytes_done=25, bytes_total=100),
    ),
    m.Model(
        model="broken",
        state=m.MODEL_STATE_FAILED,
        failure=common_pb2.Failure(reason="CHECKPOINT_REJECTED", message="It is none."),
    ),
    m.Model(model="asleep", state=m.MODEL_STATE_UNLOADED),
]


class Work:
    """Stats that grow by 100 output tokens a question."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, request: Any) -> Iterator[s.GetStatsResponse]:
        self.asked += 1
        stats = s.ModelStats(
            model="llama-3.2-3b",
            running_requests=3,
            queued_requests=1,
            used_cache_tokens=512,
            total_cache_tokens=2048,
            completion_tokens_total=100 * self.asked,
            decode_tokens_per_second=71.25,
        )
        server = s.ServerStats(
            footprint_bytes=2_500_000_000,
            reserved_bytes=5_000_000_000,
            open_streams=4,
            event_loop_lag_us=300,
            memory_pressure=s.MEMORY_PRESSURE_SOFT_LIMIT,
        )
        yield s.GetStatsResponse(server=server, models=[stats])


def requests(count: int) -> s.ListRequestsResponse:
    infos = [
        s.RequestInfo(
            request_id=f"{number:016x}",
            model="llama-3.2-3b",
            method=GENERATE,
            start_time=ago(7),
            prompt_tokens=200,
            completion_tokens=17,
            state=s.RequestInfo.STATE_DECODING,
        )
        for number in range(count)
    ]
    return s.ListRequestsResponse(requests=infos)


@pytest.fixture
def busy(server: ScriptedServer) -> ScriptedServer:
    server.scripts["ListModels"] = [m.ListModelsResponse(models=MODELS)]
    server.scripts["GetStats"] = Work()
    server.scripts["ListRequests"] = [requests(40)]
    server.scripts["GetServerInfo"] = [s.GetServerInfoResponse(version="9.9", start_time=ago(90), device="cpu")]
    return server


def test_ps_lists_what_is_loaded_and_what_it_does(busy: ScriptedServer, run: Run) -> None:
    result = run("ps")
    head, first, second, third, fourth = result.stdout.splitlines()
    assert head.split() == [
        "MODEL",
        "STATE",
        "PID",
        "MEMORY",
        "RUNNING",
        "QUEUED",
        "CACHE",
        "TOKENS/S",
        "UP",
        "UNLOADS",
    ]
    assert first.split()[:11] == [
        "llama-3.2-3b",
        "active",
        "4711",
        "1.2",
        "GB",
        "3",
        "1",
        "25%",
        "71.2",
        "1",
        "h",
    ]
    assert first.split()[-1] == "pinned"
    assert second.split()[-1] in {"s", "min"}
    assert (third.split(), fourth.split()) == (["whisper", "loading"], ["broken", "failed"])
    assert "broken: CHECKPOINT_REJECTED It is none." in result.stderr
    assert "asleep" in run("ps", "--all").stdout


def test_ps_for_a_program_has_models_with_their_stats(busy: ScriptedServer, run: Run) -> None:
    told = json.loads(run("ps", "--json").stdout)
    assert told["server"]["openStreams"] == 4
    assert [each["model"]["model"] for each in told["models"]] == [model.model for model in MODELS[:4]]
    assert told["models"][0]["stats"]["runningRequests"] == 3
    assert told["models"][2]["stats"] is None
    assert len(told["requests"]) == 40


def test_ps_says_where_nothing_is_loaded(busy: ScriptedServer, run: Run) -> None:
    busy.scripts["ListModels"] = [m.ListModelsResponse(models=MODELS[4:])]
    result = run("ps")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no model is loaded\n")


def test_requests_that_the_caller_may_not_know_are_left_out(busy: ScriptedServer, run: Run) -> None:
    busy.scripts["ListRequests"] = [Fail(grpc.StatusCode.PERMISSION_DENIED, "No.", "SCOPE_MISSING")]
    assert json.loads(run("ps", "--json").stdout)["requests"] is None
    assert "not told to this caller" in run("top").stdout


def test_top_in_a_pipe_prints_once_and_ends(busy: ScriptedServer, run: Run) -> None:
    result = run("top")
    assert result.exit_code == 0
    assert "pomona 9.9  at" in result.stdout
    assert result.stdout.count("StreamGenerate") == 40
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) < 200


def test_a_server_that_is_not_there_is_told_in_a_line(run: Run, tmp_path: Path) -> None:
    result = run("top", address=f"unix:{tmp_path / 'nobody'}")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


class Capture:
    """A terminal of 80 by 24 in which `top` runs."""

    def __init__(self, address: str) -> None:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "POMONA_SERVER": address}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        command = [sys.executable, "-P", "-m", "gateway", "top", "--interval", "0.2"]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.ByteStream(self.screen)
        self._ours = ours
        self.bytes = b""

    def read(self) -> list[str]:
        """Return the lines on the screen now."""
        try:
            while chunk := os.read(self._ours, 65536):
                self.bytes += chunk
                self._stream.feed(chunk)
        except OSError:
            pass
        return [line.rstrip() for line in self.screen.display]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(5)
        os.close(self._ours)


@pytest.fixture
def capture(busy: ScriptedServer) -> Iterator[Capture]:
    started = Capture(busy.address)
    yield started
    started.close()


def test_top_looks_right_on_a_small_screen(capture: Capture) -> None:
    # The second picture has rates.
    wait_until(lambda: any("/S" in line for line in capture.read()) and "500." in _rates(capture), LIMIT_S)
    lines = capture.read()
    assert len(lines) == HEIGHT
    assert lines[0].startswith("pomona 9.9  at 127.0.0.1:")
    assert lines[1] == "memory 2.5 GB of 5.0 GB reserved ████░░░░  soft limit  4 in flight  lag 0.3 ms"
    assert lines[3].split() == ["MODEL", "STATE", "MEMORY", "RUN", "WAIT", "CACHE", "IN/S", "OUT/S", "UNLOADS"]
    assert lines[4].split()[:7] == ["llama-3.2-3b", "active", "1.2", "GB", "3", "1", "25%"]
    assert lines[4].endswith("pinned")
    assert "…" in lines[5]
    assert lines[7].split() == ["whisper", "loading", "25%"]
    assert lines[9].split() == ["REQUEST", "MODEL", "METHOD", "STATE", "PROMPT", "ANSWER", "AGE"]
    assert lines[10].split()[2:6] == ["StreamGenerate", "decoding", "200", "17"]
    assert lines[-2].startswith("and ") or lines[-1].startswith("and ")


def test_ctrl_c_gives_the_screen_back(capture: Capture) -> None:
    wait_until(lambda: any("REQUEST" in line for line in capture.read()), LIMIT_S)
    os.killpg(capture.process.pid, signal.SIGINT)
    assert capture.process.wait(LIMIT_S) == 0
    capture.read()
    assert capture.bytes.rstrip().endswith(b"\x1b[?1049l\x1b[?25h") or b"\x1b[?1049l" in capture.bytes
    assert b"Traceback" not in capture.bytes


def _rates(capture: Capture) -> str:
    (line,) = [line for line in capture.read() if line.startswith("llama")] or [""]
    words = line.split()
    return "500." if len(words) > 8 and 200 < float(words[-2]) < 510 else ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0.0 s"), (4.24, "4.2 s"), (61, "1 min"), (11_100, "3 h 05"), (187_200, "2 d 04 h")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
