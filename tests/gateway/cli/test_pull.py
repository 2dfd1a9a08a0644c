"""`pull`, `rm`, and `models` without a server."""

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import common_pb2
from pomona.v1 import model_pb2 as m
from typer.testing import CliRunner, Result

from gateway.cli import connection
from gateway.cli.app import app
from gateway.cli.connection import ServerOptions
from gateway.hub.cache import cached_models
from tests.gateway.hub.test_cache import write
from tests.support.hub import COMMIT, Hub
from tests.support.scripted_server import Fail, ScriptedServer
from tests.support.tiny_models import write_llama
from tests.support.waiting import wait_until

from .conftest import Run, start

WEIGHTS = "model.safetensors"
MIB = 1024 * 1024
Point = Callable[[str], None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("tiny") / "checkpoint")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub().running() as running:
        for name, value in running.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("POMONA_SERVER", raising=False)
        yield running


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Point:
    """Have the server that nobody names be one of the test's."""
    connect = connection.connect

    def point(address: str) -> None:
        def elsewhere(options: ServerOptions) -> Any:
            return connect(replace(options, server=address))

        for module in ("models", "remove"):
            monkeypatch.setattr(f"gateway.cli.{module}.connect", elsewhere)

    point("127.0.0.1:1")
    return point


def here(*arguments: str) -> Result:
    """Run a verb without naming a server."""
    return CliRunner().invoke(app, list(arguments), env={"NO_COLOR": "1", "POMONA_SERVER": None})


def names(folder: Path) -> list[str]:
    return [model.name for model in cached_models(folder / "hub")]


def test_a_model_is_pulled_described_listed_and_removed(hub: Hub, tiny: Path, tmp_path: Path, point: Point) -> None:
    hub.add("org/m", tiny)
    result = here("pull", "org/m@main")
    assert (result.exit_code, result.stdout) == (0, "org/m is in the cache: llama\n")
    assert result.stderr.splitlines()[:2] == ["org/m: listing", "org/m: pytorch_model.bin is left out, 6 B"]
    listed = here("models")
    heading, row = listed.stdout.splitlines()
    assert heading.split() == ["MODEL", "SIZE", "REVISION", "LAST", "USED"]
    assert row.split()[:4:3] == ["org/m", COMMIT[:12]]
    assert "no server answers at 127.0.0.1:50051" in listed.stderr
    (document,) = json.loads(here("models", "--cached", "--json").stdout)["cached"]
    assert (document["model"], document["revision"]) == ("org/m", COMMIT)
    assert int(document["sizeBytes"]) > (tiny / WEIGHTS).stat().st_size
    removed = here("rm", "org/m", "--yes")
    assert (removed.exit_code, removed.stdout.startswith("org/m is gone, "), names(tmp_path)) == (0, True, [])


def test_a_program_reads_progress_and_the_model(hub: Hub, tiny: Path) -> None:
    hub.add("org/m", tiny)
    lines = [json.loads(line) for line in here("pull", "org/m", "--name", "mine", "--json").stdout.splitlines()]
    assert all(set(line["progress"]) == {"phase", "file", "bytesDone", "bytesTotal"} for line in lines[:-1])
    assert lines[0]["progress"]["phase"] == "listing"
    assert (lines[-1]["model"]["model"], lines[-1]["model"]["architecture"]) == ("mine", "llama")


def test_a_model_that_cannot_be_served_is_told_at_once(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", {"config.json": b'{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}', WEIGHTS: b"w"})
    result = here("pull", "org/m")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "CHECKPOINT_REJECTED" in result.stderr
    assert "pomona rm org/m" in result.stderr
    assert names(tmp_path) == ["org/m"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("org/none",), 1, "NOT_FOUND MODEL_NOT_FOUND: org/none cannot be pulled: the hub has no such repository"),
        (("org/m@v9",), 1, "NOT_FOUND MODEL_NOT_FOUND: org/m cannot be pulled: it has no revision v9"),
        (("org/m", "--file", "x.gguf"), 1, "it has no file x.gguf"),
        (("m",), 2, "ORG/NAME: 'm' is not organisation/name"),
        (("org/m@",), 2, "@REVISION: '' is empty"),
        (("org/m@../x",), 2, "@REVISION: '../x' is not a branch"),
        (("org/m", "--name", "a b"), 2, "--name: 'a b' is not the name of a model"),
        (("org/m", "--file", "x.bin"), 2, "--file: 'x.bin' is not the name of a GGUF file"),
        (("org/m", "--name", "org/other"), 2, "--name: 'org/other' is the name of a model of org/other"),
    ],
)
def test_what_cannot_be_pulled_is_told_in_a_line(
    hub: Hub, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    hub.add("org/m", {"config.json": b"{}", WEIGHTS: b"w"})
    write(tmp_path / "hub", "org/other")
    result = here("pull", *arguments)
    assert (result.exit_code, said in result.stderr.splitlines()[-1]) == (code, True), result.stderr


def unfinished_bytes(folder: Path) -> int:
    """Return the size of the largest file that has not come in full; others may be completed and go meanwhile."""
    sizes = [0]
    for path in folder.rglob("*.incomplete"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def test_ctrl_c_keeps_what_came_and_says_so(hub: Hub, tmp_path: Path) -> None:
    content = bytes(3 * 1024 * 1024)
    hub.add("org/m", {"config.json": b"{}", WEIGHTS: content}, holds={WEIGHTS: threading.Event()})
    process = start("pull", "org/m")
    wait_until(lambda: unfinished_bytes(tmp_path) >= MIB and len(hub.downloads(WEIGHTS)) == 1, timeout_s=30)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, "what came is kept" in errors) == (130, True)
    assert unfinished_bytes(tmp_path) >= MIB


def test_a_named_server_pulls_instead(server: ScriptedServer, run: Run) -> None:
    server.scripts["PullModel"] = [
        m.PullModelResponse(phase="skipped", file="x.bin", bytes_total=7),
        m.PullModelResponse(phase="downloading", file=WEIGHTS, bytes_done=5, bytes_total=9),
        m.PullModelResponse(phase="done", model=m.Model(model="mine", architecture="llama", quantization="q4")),
    ]
    result = run("pull", "org/m@v1", "--name", "mine")
    assert (result.exit_code, result.stdout) == (0, "mine is in the cache: llama, q4\n")
    assert result.stderr.splitlines() == ["mine: x.bin is left out, 7 B", "mine: downloading, 5 B of 9 B"]
    request = server.call("PullModel").request
    assert (request.repository, request.revision, request.model) == ("org/m", "v1", "mine")


def test_a_model_that_a_server_cannot_serve_is_a_failure_too(server: ScriptedServer, run: Run) -> None:
    failure = common_pb2.Failure(code=9, reason="CHECKPOINT_REJECTED", message="config.json: no")
    server.scripts["PullModel"] = [m.PullModelResponse(phase="done", model=m.Model(model="org/m", failure=failure))]
    result = run("pull", "org/m")
    assert (result.exit_code, "FAILED_PRECONDITION CHECKPOINT_REJECTED: config.json: no" in result.stderr) == (1, True)


def test_removal_asks_somebody_or_wants_to_be_told(hub: Hub, tmp_path: Path, point: Point) -> None:
    write(tmp_path / "hub")
    result = here("rm", "org/m")
    assert (result.exit_code, "--yes" in result.stderr, names(tmp_path)) == (2, True, ["org/m"])


def test_removal_of_what_is_not_there_says_what_is(hub: Hub, tmp_path: Path, point: Point) -> None:
    write(tmp_path / "hub")
    result = here("rm", "org/n", "--yes")
    assert (result.exit_code, "there are: org/m" in result.stderr) == (1, True)


def test_removal_spares_what_a_running_server_has_loaded(
    server: ScriptedServer, hub: Hub, tmp_path: Path, point: Point
) -> None:
    write(tmp_path / "hub")
    point(server.address)
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[m.Model(model="org/m")])]
    result = here("rm", "org/m", "--yes")
    assert (result.exit_code, "MODEL_IN_USE: The model org/m is loaded" in result.stderr) == (1, True)
    assert names(tmp_path) == ["org/m"]
    server.scripts["ListModels"] = [m.ListModelsResponse()]
    server.scripts["RefreshCatalogue"] = [m.RefreshCatalogueResponse(removed=["org/m"])]
    assert here("rm", "org/m", "--yes").exit_code == 0
    assert names(tmp_path) == []
    assert server.call("RefreshCatalogue")


def test_a_named_server_removes_instead(server: ScriptedServer, run: Run) -> None:
    server.scripts["DeleteModel"] = [m.DeleteModelResponse(freed_bytes=1_500_000)]
    assert run("rm", "org/m", "-y").stdout == "org/m is gone, 1.5 MB freed\n"
    assert server.call("DeleteModel").request.model == "org/m"


def test_a_refresh_tells_what_changed(server: ScriptedServer, run: Run) -> None:
    server.scripts["RefreshCatalogue"] = [m.RefreshCatalogueResponse(added=["a", "b"], changed=["c"])]
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[m.Model(model="a")])]
    result = run("models", "--refresh")
    assert (result.exit_code, result.stderr.splitlines()) == (0, ["added: a, b", "changed: c"])


def test_a_named_server_that_is_not_there_is_a_failure(run: Run) -> None:
    assert run("models", address="127.0.0.1:1").exit_code == 1


def test_a_server_that_forbids_pulls_says_so(server: ScriptedServer, run: Run) -> None:
    server.scripts["PullModel"] = [Fail(grpc.StatusCode.PERMISSION_DENIED, "allow_pull is off", "SCOPE_MISSING")]
    result = run("pull", "org/m")
    assert (result.exit_code, "PERMISSION_DENIED SCOPE_MISSING: allow_pull is off" in result.stderr) == (1, True)
