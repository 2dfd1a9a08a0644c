"""A gRPC status becomes one line, an exit code, and an object for programs."""

import json
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details

from tests.support.scripted_server import Fail, ScriptedServer

from .conftest import Run


def invalid_temperature() -> Fail:
    violation = details.BadRequest.FieldViolation(field="spec.sampling.temperature", description="must not be negative")
    return Fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "a field is out of range",
        "INVALID_FIELD",
        details=(details.BadRequest(field_violations=[violation]),),
    )


def queue_full() -> Fail:
    retry = details.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    return Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "64 requests\nwait", "QUEUE_FULL", {"depth": "64"}, (retry,))


def test_line_names_code_reason_message_and_field(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [invalid_temperature()]
    result = run("chat", "m", "hi", "--temperature", "-1")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: INVALID_ARGUMENT INVALID_FIELD: a field is out of range "
        "[spec.sampling.temperature: must not be negative]\n"
    )


def test_line_says_when_to_try_again(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [queue_full()]
    result = run("chat", "m", "hi")
    assert result.stderr == "error: RESOURCE_EXHAUSTED QUEUE_FULL: 64 requests wait (try again in 1.5 s)\n"


def test_incident_is_named(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [Fail(grpc.StatusCode.INTERNAL, "a bug", "INTERNAL_ERROR", {"incident": "0a1b2c3d"})]
    assert run("models").stderr == "error: INTERNAL INTERNAL_ERROR: a bug (incident 0a1b2c3d)\n"


def test_status_without_details_is_told_too(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [Fail(grpc.StatusCode.NOT_FOUND, "nothing here")]
    result = run("models")
    assert (result.exit_code, result.stderr) == (1, "error: NOT_FOUND: nothing here\n")


def test_program_reads_the_failure_as_an_object(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [queue_full()]
    result = run("chat", "m", "hi", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "error": {
            "code": "RESOURCE_EXHAUSTED",
            "reason": "QUEUE_FULL",
            "message": "64 requests\nwait",
            "metadata": {"depth": "64"},
            "fieldViolations": [],
            "retryDelaySeconds": 1.5,
        }
    }


def test_no_server_says_how_to_start_one(run: Run, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/none.sock"
    result = run("models", address=address)
    assert result.exit_code == 1
    assert f"no server answers at {address}" in result.stderr
    assert f"pomona serve --listen {address}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_server_at_a_port_says_so(run: Run) -> None:
    with ScriptedServer() as gone:
        address = gone.address
    result = run("models", "--server", address)
    assert f"no server answers at {address}; start one" in result.stderr
