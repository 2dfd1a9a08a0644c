"""`health`: what scripts and containers ask."""

import json

import grpc
from grpc_health.v1 import health_pb2

from tests.support.scripted_server import Fail, ScriptedServer

from .conftest import Run

SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
NOT_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


def test_a_server_that_takes_requests_is_success(server: ScriptedServer, run: Run) -> None:
    server.scripts["Check"] = [SERVING]
    result = run("health")
    assert (result.exit_code, result.stdout, server.call("Check").request.service) == (0, "SERVING\n", "")


def test_json_has_the_status_or_the_failure(server: ScriptedServer, run: Run) -> None:
    server.scripts["Check"] = [SERVING]
    assert json.loads(run("health", "--json").stdout) == {"status": "SERVING"}
    server.scripts["Check"] = [NOT_SERVING]
    result = run("health", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["reason"]) == (1, "NOT_SERVING")


def test_a_model_is_asked_for_by_its_name(server: ScriptedServer, run: Run) -> None:
    server.scripts["Check"] = [NOT_SERVING]
    result = run("health", "smol")
    assert (result.exit_code, result.stderr) == (1, "error: smol is NOT_SERVING\n")
    assert server.call("Check").request.service == "smol"


def test_a_server_that_is_not_there_is_failure(run: Run) -> None:
    result = run("health", address="unix:/nowhere/p.sock")
    assert (result.exit_code, "no server answers" in result.stderr) == (1, True)


def test_a_refusal_is_told_as_every_other(server: ScriptedServer, run: Run) -> None:
    server.scripts["Check"] = [Fail(grpc.StatusCode.NOT_FOUND, "there is no model x.", reason="MODEL_NOT_FOUND")]
    result = run("health", "x")
    assert (result.exit_code, "NOT_FOUND" in result.stderr) == (1, True)


def test_it_waits_until_requests_are_taken(server: ScriptedServer, run: Run) -> None:
    answers = iter([NOT_SERVING, NOT_SERVING, SERVING])
    server.scripts["Check"] = lambda _: iter([next(answers)])
    result = run("health", "--wait", "20")
    assert (result.exit_code, len(server.calls)) == (0, 3)


def test_it_waits_no_longer_than_it_was_told(server: ScriptedServer, run: Run) -> None:
    server.scripts["Check"] = [NOT_SERVING]
    assert (run("health", "--wait", "0.3").exit_code, len(server.calls)) == (1, 2)
