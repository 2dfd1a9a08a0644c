"""A gRPC status becomes one line, an exit code, and an object for programs."""

import json
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details

from tests.support.scripted_server import Fail, Hold, ScriptedServer

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
    result = run("chat", "m", "hi", "--temperature", "1")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: INVALID_ARGUMENT INVALID_FIELD: a field is out of range [--temperature: must not be negative]\n"
    )


def test_a_budget_that_is_too_small_is_told_by_its_option_with_the_least(server: ScriptedServer, run: Run) -> None:
    facts = {"model": "m", "option": "expert_budget", "least_bytes": "70647808"}
    server.scripts["EstimateModel"] = [Fail(grpc.StatusCode.FAILED_PRECONDITION, "no", "MODEL_LOAD_FAILED", facts)]
    words = "the budget for experts is too small; the least is --expert-budget 70.7M"
    assert run("fit", "m").stderr == f"error: FAILED_PRECONDITION MODEL_LOAD_FAILED: {words}\n"
    failure = json.loads(run("fit", "m", "--json").stdout)["error"]
    assert (failure["message"], failure["metadata"]["least_bytes"]) == ("no", "70647808")


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


def not_found(models: str, asked: str = "smolm2") -> Fail:
    metadata = {"model": asked, "models": models}
    return Fail(grpc.StatusCode.NOT_FOUND, f"There is no model named {asked}.", "MODEL_NOT_FOUND", metadata)


@pytest.mark.parametrize("verb", [("chat", "smolm2", "hi"), ("show", "smolm2")])
def test_unknown_model_is_answered_with_those_there_are(
    server: ScriptedServer, run: Run, verb: tuple[str, ...]
) -> None:
    for method in ("StreamGenerate", "GetModel"):
        server.scripts[method] = [not_found("qwen3, org/smollm2, smollm2")]
    result = run(*verb)
    assert result.exit_code == 1
    assert result.stderr.endswith("There are: smollm2, org/smollm2, qwen3. Did you mean smollm2?\n")


def test_no_model_is_suggested_where_none_is_close(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [not_found("qwen3, llama", asked="xyz")]
    assert run("show", "xyz").stderr.endswith("There are: qwen3, llama\n")


def test_server_without_models_says_how_it_gets_some(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [not_found("")]
    assert run("show", "smolm2").stderr.endswith("pomona serve --model NAME=PATH\n")


def test_a_model_that_failed_is_told_with_what_tries_it_again(server: ScriptedServer, run: Run) -> None:
    failed = Fail(grpc.StatusCode.FAILED_PRECONDITION, "It crashed too often.", "MODEL_FAILED", {"model": "smol"})
    server.scripts["StreamGenerate"] = [failed]
    assert "pomona load smol" in run("chat", "smol", "hi").stderr


def test_a_call_that_an_address_does_not_offer_is_told_so(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [Fail(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")]
    assert "admin socket" in run("chat", "smol", "hi").stderr


def test_program_reads_wrong_usage_as_an_object_of_the_same_form(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [queue_full()]
    failed = json.loads(run("chat", "m", "hi", "--json").stdout.splitlines()[-1])["error"]
    wrong = json.loads(run("chat", "m", "hi", "--json", "--seed", str(2**64)).stdout)["error"]
    assert (wrong["code"], wrong["reason"], set(wrong)) == ("INVALID_ARGUMENT", "USAGE", set(failed))


def test_status_of_grpc_itself_keeps_its_words_and_gets_a_reason(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [Fail(grpc.StatusCode.UNAVAILABLE, "upstream connect error")]
    result = run("show", "m", "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["reason"]) == ("UNAVAILABLE", "CONNECTION_LOST")
    assert error["message"] == "the connection to the server broke off (upstream connect error)"


def test_answer_that_does_not_come_in_time_says_how_to_wait_longer(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [Hold()]
    result = run("show", "m", "--timeout", "0.05")
    assert (result.exit_code, "TIMEOUT" in result.stderr, "--timeout SECONDS" in result.stderr) == (1, True, True)


def test_deadline_of_the_server_is_not_taken_for_that_of_the_command(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [Fail(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline passed.")]
    assert run("show", "m").stderr == "error: DEADLINE_EXCEEDED: The deadline passed.\n"
