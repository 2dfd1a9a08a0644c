"""The programs of `docs/clients`, built and run as `docs/clients.md` says, and tools that nobody here wrote.

Not collected by a plain run of pytest: it needs Node, Go, Java with Maven, Rust and the tools of `tools.sh`.
`make test-clients` runs it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pomona
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from pomona.v1 import server_pb2, server_pb2_grpc

from tests.support.certificates import Certificates, write_certificates
from tests.support.scripted_server import Fail, Hold, ScriptedServer, Step, answer
from tests.support.served import Served, demo_checkpoint, served
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "docs" / "clients"
BUILD = ROOT / "build" / "clients"
PATHS = [BUILD / "bin", ROOT / ".cache" / "bin", Path(sys.executable).parent]
COMPILERS = {
    "python": sys.executable,
    "client": sys.executable,
    "node": "npm",
    "go": "go",
    "java": "mvn",
    "rust": "cargo",
}
PROMPT = "Why is the sky blue?"
PUSHBACK = "grpc-retry-pushback-ms"
BUILD_LIMIT_S = 600
RUN_LIMIT_S = 50

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_LIMIT_S)]


@dataclass(frozen=True)
class Program:
    """A built client: the command that the page runs it with, and where."""

    folder: Path
    command: tuple[str, ...]

    def run(self, server: str, authority: Path, token: str) -> "subprocess.CompletedProcess[str]":
        told = {"POMONA_SERVER": server, "POMONA_CA": str(authority), "POMONA_TOKEN": token}
        return subprocess.run(
            self.command,
            cwd=self.folder,
            env=environment() | told,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_LIMIT_S,
        )


@dataclass(frozen=True)
class Secured:
    """A server with SmolLM2 behind TLS and tokens."""

    address: str
    certificates: Certificates
    token: str

    def client(self) -> pomona.Client:
        return pomona.connect(self.address, tls_ca=self.certificates.authority, token=self.token, timeout_s=RUN_LIMIT_S)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([*map(str, PATHS), os.environ["PATH"]])
    return {**os.environ, "PATH": paths, "GOBIN": str(BUILD / "bin"), "PROTOC": str(BUILD / "bin" / "protoc")}


def commands(name: str) -> list[str]:
    """Return the commands of a block of the page, each on one line."""
    text = (ROOT / "docs" / "clients.md").read_text()
    (block,) = re.findall(rf"^```sh {name}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block.replace("\\\n", " ").splitlines()


def shell(*lines: str, told: dict[str, str] | None = None) -> str:
    """Run commands at the root of the checkout, and return what they print."""
    script = "\n".join(["set -euo pipefail", *lines])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment() | (told or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_LIMIT_S,
    )
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


def build_from_page(name: str) -> Program:
    """Do what the page says up to its last command, which is how to run the program."""
    *made, run = commands(name)
    shell(*made)
    return Program(PROGRAMS / name, tuple(shlex.split(run)))


def build_with_client_alone() -> Program:
    """Install the package of the client in an environment of its own, where nothing of the server is."""
    folder = BUILD / "python"
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    shell(f"{python} -m pip install --quiet ./protos")
    code = "import importlib.util as u; print([n for n in ('pydantic', 'typer', 'google.rpc') if u.find_spec(n)])"
    assert shell(shlex.join([str(python), "-c", code])).strip() == "[]"
    return Program(PROGRAMS / "python", (str(python), "-P", "-W", "error", "example.py", "smol", PROMPT))


BUILDERS: dict[str, Callable[[], Program]] = {
    "client": build_with_client_alone,
    **{name: lambda name=name: build_from_page(name) for name in ("python", "node", "go", "java", "rust")},
}


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    """Put a `protoc` on the path: that of grpcio-tools."""
    (BUILD / "bin").mkdir(parents=True, exist_ok=True)
    script = BUILD / "bin" / "protoc"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -W ignore -m grpc_tools.protoc "$@"\n')
    script.chmod(0o755)


@pytest.fixture(scope="module", params=list(BUILDERS))
def program(request: pytest.FixtureRequest) -> Program:
    if shutil.which(COMPILERS[request.param]) is None and "CI" not in os.environ:
        pytest.skip(f"{COMPILERS[request.param]} is not installed")
    return BUILDERS[request.param]()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    create = [sys.executable, "-P", "-m", "gateway", "token", "create", "app", "--tokens", str(tokens)]
    for scope in ("generate", "models.read", "admin"):
        create += ["--scope", scope]
    token = subprocess.run(create, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    flags = ["--model", f"smol={demo_checkpoint()}", "--tokens", str(tokens)]
    flags += ["--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key)]
    with served(*flags) as running:
        yield Secured(_by_name(running), certificates, token)
        assert running.stop() == 0


def _by_name(running: Served) -> str:
    return f"localhost:{running.address.rpartition(':')[2]}"


def cancelled_requests(client: pomona.Client) -> int:
    """Return how many requests of the model ended because their caller went."""
    stub = client.stub(server_pb2_grpc.ServerServiceStub)
    stats = stub.GetStats(server_pb2.GetStatsRequest(), metadata=client.metadata, timeout=10)
    return sum(model.requests_total["CANCELLED"] for model in stats.models)


def test_a_program_streams_cancels_and_reads_reasons(program: Program, secured: Secured) -> None:
    with secured.client() as client:
        text = client.chat("smol", PROMPT, temperature=0, max_tokens=12).result().text
        before = cancelled_requests(client)
        done = program.run(secured.address, secured.certificates.authority, secured.token)
        assert done.stdout.splitlines() == [
            *f"{text}\n12 tokens".splitlines(),
            "answer: OK",
            "cancelled: CANCELLED",
            "late: DEADLINE_EXCEEDED",
            "refused: NOT_FOUND MODEL_NOT_FOUND model=nothing",
        ], (done.stdout, done.stderr)
        assert done.returncode == 0
        wait_until(lambda: cancelled_requests(client) > before)


def test_a_program_without_a_token_is_told_so(program: Program, secured: Secured) -> None:
    done = program.run(secured.address, secured.certificates.authority, "wrong")
    assert re.search(r"^answer: UNAUTHENTICATED CREDENTIALS_INVALID", done.stdout, re.MULTILINE), (
        done.stdout,
        done.stderr,
    )


class Unsteady:
    """A script whose first call is UNAVAILABLE twice, and whose calls of an unknown model are too many."""

    def __init__(self) -> None:
        later = Fail(grpc.StatusCode.UNAVAILABLE, "Later.", "WORKER_RESTARTING", trailers=((PUSHBACK, "20"),))
        self._turns: Iterator[list[Step]] = iter([[later], [later], answer("Hi"), [*answer("Hi")[:2], Hold()]])

    def __call__(self, request: Any) -> list[Step]:
        if request.model == "nothing":
            retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2))
            told = {"model": request.model}
            trailers = ((PUSHBACK, "-1"),)  # as the server sends it
            return [Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "Full.", "QUEUE_FULL", told, (retry,), trailers)]
        return next(self._turns, [Hold()])


def test_a_program_tries_again_as_the_server_says(program: Program, certificates: Certificates) -> None:
    script = {"StreamGenerate": Unsteady()}
    with ScriptedServer(script, address="127.0.0.1:0", credentials=certificates.server_credentials()) as server:
        address = f"localhost:{server.address.rpartition(':')[2]}"
        done = program.run(address, certificates.authority, "secret")
        assert done.stdout.replace("2.0s", "2s").splitlines() == [
            "Hi",
            "1 tokens",
            "answer: OK",
            "cancelled: CANCELLED",
            "late: DEADLINE_EXCEEDED",
            "refused: RESOURCE_EXHAUSTED QUEUE_FULL model=nothing retry in 2s",
        ], (done.stdout, done.stderr)
        assert [call.request.model for call in server.calls].count("nothing") == 1
        assert {call.metadata["authorization"] for call in server.calls} == {"Bearer secret"}
        assert server.calls[3].is_ended_by_client.wait(5)


def test_tools_that_nobody_here_wrote(secured: Secured) -> None:
    told = {
        "POMONA_SERVER": secured.address,
        "POMONA_CA": str(secured.certificates.authority),
        "POMONA_TOKEN": secured.token,
    }
    flags = shlex.join(["-cacert", told["POMONA_CA"], "-H", f"authorization: Bearer {secured.token}"])
    printed = shell(f"bash tests/clients/grpcurl.sh $POMONA_SERVER smol grpcurl {flags}", told=told)
    assert "12 deltas from smol" in printed
    stream, bearer, load, health, of_a_model = commands("tools")
    assert '"completed"' in shell(stream, told=told)
    report = json.loads(shell(bearer, f"{load} --format json", told=told))
    assert report["statusCodeDistribution"] == {"OK": 40}
    assert "status: SERVING" in shell(f"{health} 2>&1", told=told)
    assert "status: SERVING" in shell(f"{of_a_model} 2>&1", told=told)
    unknown = subprocess.run(
        ["bash", "-c", of_a_model.replace("smol", "nothing")],
        env=environment() | told,
        capture_output=True,
        check=False,
        timeout=RUN_LIMIT_S,
    )
    assert unknown.returncode != 0
