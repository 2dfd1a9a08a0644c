"""`requests`, `cancel`, `logs` and `version`."""

import json
import signal
import time
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import server_pb2 as s

from tests.support.scripted_server import Hold, ScriptedServer

from .conftest import Run, start


def entry(message: str, **fields: str) -> s.StreamLogsResponse:
    return s.StreamLogsResponse(
        time=Timestamp(seconds=3661, nanos=5_000_000),
        level="info",
        model="smollm2",
        instance_id="0a1b2c3d4e5f",
        message=message,
        fields=fields,
    )


def test_requests_are_listed(server: ScriptedServer, run: Run) -> None:
    info = s.RequestInfo(
        request_id="r1",
        model="smollm2",
        method="/pomona.v1.GenerationService/StreamGenerate",
        start_time=Timestamp(seconds=int(time.time())),
        prompt_tokens=7,
        completion_tokens=3,
        state=s.RequestInfo.STATE_DECODING,
    )
    server.scripts["ListRequests"] = [s.ListRequestsResponse(requests=[info])]
    row = run("requests", "smollm2").stdout.splitlines()[1].split()
    assert row[:6] == ["r1", "smollm2", "StreamGenerate", "decoding", "7", "3"]
    assert server.call("ListRequests").request.model == "smollm2"


def test_no_requests_are_an_empty_list_for_a_program(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListRequests"] = [s.ListRequestsResponse()]
    assert json.loads(run("requests", "--json").stdout) == {"requests": []}


def test_request_is_cancelled_by_its_id(server: ScriptedServer, run: Run) -> None:
    server.scripts["CancelRequest"] = [s.CancelRequestResponse(outcome=s.CancelRequestResponse.OUTCOME_CANCELLED)]
    assert run("cancel", "r1").stdout == "r1 is cancelled\n"
    assert server.call("CancelRequest").request.request_id == "r1"


def not_running(server: ScriptedServer, *request_ids: str) -> None:
    outcome = s.CancelRequestResponse.OUTCOME_ALREADY_FINISHED
    server.scripts["CancelRequest"] = [s.CancelRequestResponse(outcome=outcome)]
    infos = [s.RequestInfo(request_id=each) for each in request_ids]
    server.scripts["ListRequests"] = [s.ListRequestsResponse(requests=infos)]


def test_mistyped_id_is_a_failure_that_lists_what_runs(server: ScriptedServer, run: Run) -> None:
    not_running(server, "other-one", "request-1")
    result = run("cancel", "reqest-1")
    assert (result.exit_code, result.stdout) == (1, "")
    words = "no request reqest-1 is in flight; in flight: request-1, other-one. Did you mean request-1?"
    assert result.stderr == f"error: {words}\n"


def test_no_more_than_ten_requests_are_listed(server: ScriptedServer, run: Run) -> None:
    not_running(server, *(f"{number:02}" for number in range(13)))
    result = run("cancel", "zz")
    assert "in flight: 00, 01, 02, 03, 04, 05, 06, 07, 08, 09 and 3 more\n" in result.stderr


def test_cancelling_where_nothing_runs_is_a_failure_for_programs_too(server: ScriptedServer, run: Run) -> None:
    not_running(server)
    result = run("cancel", "r1", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["reason"]) == (1, "NOT_FOUND", "REQUEST_NOT_FOUND")
    assert error["message"] == "no request r1 is in flight, and no other"


def test_log_lines_are_printed_with_their_source_and_fields(server: ScriptedServer, run: Run) -> None:
    gateway = s.StreamLogsResponse(time=Timestamp(seconds=3661), level="error", message="gone", dropped_lines=2)
    server.scripts["StreamLogs"] = [entry("loaded", bytes="10", path="fast"), gateway]
    result = run("logs", "smollm2", "--lines", "5")
    assert result.stdout.splitlines() == [
        "01:01:01.005 info    smollm2 0a1b2c3d4e5f: loaded bytes=10 path=fast",
        "01:01:01.000 error   gateway: gone",
    ]
    assert result.stderr == "(2 lines were dropped)\n"
    assert server.call("StreamLogs").request == s.StreamLogsRequest(model="smollm2", past_lines=5, follow=False)


def test_log_lines_are_objects_for_a_program(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamLogs"] = [entry("one"), entry("two")]
    assert [json.loads(line)["message"] for line in run("logs", "--json").stdout.splitlines()] == ["one", "two"]


def test_log_lines_are_followed_until_ctrl_c(server: ScriptedServer) -> None:
    server.scripts["StreamLogs"] = [entry("one"), Hold()]
    with start("logs", "--follow", "--server", server.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("one\n")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (130, "")
    assert server.call("StreamLogs").is_ended_by_client.wait(5)
    assert server.call("StreamLogs").request.follow


def test_versions_of_both_sides_are_printed(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetServerInfo"] = [s.GetServerInfoResponse(version="9.8.7", device="cpu")]
    first, second = run("version").stdout.splitlines()
    assert first.startswith("pomona ")
    assert second == f"server {server.address}: 9.8.7 (cpu)"


def test_version_needs_no_server(run: Run, tmp_path: Path) -> None:
    result = run("version", "--json", address=f"unix:{tmp_path}/none.sock")
    assert (result.exit_code, json.loads(result.stdout)["server"]) == (0, None)
