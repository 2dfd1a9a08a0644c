"""`chat`: what it prints, asks and cancels."""

import json
import signal
import subprocess
import sys

import grpc
import pytest
from pomona.v1 import generation_pb2 as g

from tests.support.scripted_server import Fail, Hold, ScriptedServer, answer, delta

from .conftest import Run, start
from .terminal import Terminal


def test_answer_goes_to_standard_output_and_statistics_to_standard_error(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("The sky", " is", " blue.")
    result = run("chat", "m", "Why?")
    assert (result.exit_code, result.stdout) == (0, "The sky is blue.\n")
    assert result.stderr.startswith("[7 prompt tokens, 3 tokens, 4.0 tokens/s, first token after ")


def test_answer_cut_at_the_limit_says_so(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a", reason=g.FINISH_REASON_MAX_TOKENS)
    assert "cut at the token limit" in run("chat", "m", "Why?").stderr


def test_request_holds_what_was_asked_for_and_nothing_else(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    options = ("--max-tokens", "5", "--temperature", "0", "--top-p", "0.5", "--seed", "7", "--stop", "x", "--stop", "y")
    run("chat", "m", "Why?", "--system", "Be brief.", *options)
    request = g.StreamGenerateRequest(model="m")
    request.spec.chat.messages.add(role=g.ROLE_SYSTEM, text="Be brief.")
    request.spec.chat.messages.add(role=g.ROLE_USER, text="Why?")
    request.spec.sampling.MergeFrom(g.SamplingParams(temperature=0, top_p=0.5, seed=7))
    request.spec.stopping.MergeFrom(g.StoppingParams(max_tokens=5, stop_strings=["x", "y"]))
    assert server.call("StreamGenerate").request == request


def test_unset_sampling_is_left_to_the_model(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?")
    spec = server.call("StreamGenerate").request.spec
    assert (spec.HasField("sampling"), spec.HasField("stopping")) == (False, False)


@pytest.mark.parametrize("arguments", [("chat", "m"), ("chat", "m", "-")])
def test_prompt_may_come_from_standard_input(server: ScriptedServer, run: Run, arguments: tuple[str, ...]) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    assert run(*arguments, stdin="Piped question\n").exit_code == 0
    assert server.call("StreamGenerate").request.spec.chat.messages[0].text == "Piped question"


def test_empty_standard_input_is_a_usage_error(run: Run) -> None:
    result = run("chat", "m", stdin="\n")
    assert (result.exit_code, result.stderr) == (2, "error: standard input holds no prompt\n")


def test_program_reads_one_event_a_line(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("Hello", "\n\N{GREEK SMALL LETTER ALPHA}")
    result = run("chat", "m", "Why?", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["eventNumber"] for event in events] == ["0", "1", "2", "3", "4"]
    assert (
        "".join(event["delta"]["text"] for event in events if "delta" in event) == "Hello\n\N{GREEK SMALL LETTER ALPHA}"
    )
    assert events[-1]["completed"]["usage"]["completionTokens"] == 2


def test_answer_that_fails_midway_keeps_what_came(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [delta("Half an"), Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED")]
    result = run("chat", "m", "Why?")
    assert (result.exit_code, result.stdout) == (1, "Half an\n")
    assert result.stderr == "error: UNAVAILABLE WORKER_DIED: it died\n"


def test_event_of_a_newer_server_is_passed_over(server: ScriptedServer, run: Run) -> None:
    newer = g.StreamGenerateResponse.FromString(b"\x08\x01\xfa\x01\x03new")
    server.scripts["StreamGenerate"] = [newer, *answer("a")]
    assert run("chat", "m", "Why?").stdout == "a\n"


def test_control_characters_of_an_answer_reach_a_pipe_unchanged(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("\x1b[31mred")
    assert run("chat", "m", "Why?").stdout == "\x1b[31mred\n"


def test_ctrl_c_cancels_the_request_on_the_server(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = [delta("On and"), Hold()]
    with start("chat", "m", "Why?", "--server", server.address) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == "On and"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
    assert (process.returncode, output, errors) == (130, "\n", "")
    assert server.call("StreamGenerate").is_ended_by_client.wait(5)


def test_program_reads_in_the_last_line_that_ctrl_c_ended_the_answer(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = [delta("On and"), Hold()]
    with start("chat", "m", "Why?", "--json", "--server", server.address) as process:
        assert process.stdout is not None
        assert "delta" in json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
    (last,) = [json.loads(line) for line in output.splitlines()]
    assert (process.returncode, errors) == (130, "")
    assert (last["error"]["code"], last["error"]["reason"]) == ("CANCELLED", "INTERRUPTED")


def test_program_reads_in_the_last_line_that_the_server_went_away() -> None:
    with ScriptedServer({"StreamGenerate": [delta("On and"), Hold()]}) as server:
        process = start("chat", "m", "Why?", "--json", "--server", server.address)
        assert process.stdout is not None
        assert "delta" in json.loads(process.stdout.readline())
    with process:
        output, errors = process.communicate(timeout=10)
    error = json.loads(output.splitlines()[-1])["error"]
    assert (process.returncode, error["code"], error["reason"]) == (1, "UNAVAILABLE", "CONNECTION_LOST")
    assert errors.startswith("error: UNAVAILABLE CONNECTION_LOST: ")


def test_prompt_that_is_not_utf_8_is_wrong_usage(server: ScriptedServer) -> None:
    with start("chat", "m", "Why \udcff?", "--server", server.address) as process:
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (2, "error: prompt holds bytes that are not UTF-8\n")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_standard_input_that_is_not_utf_8_is_wrong_usage(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    command = [sys.executable, "-P", "-m", "gateway", "chat", "m", "-", "--server", server.address]
    done = subprocess.run(command, input=b"Why \xff?", capture_output=True, check=False, timeout=10)
    assert (done.returncode, done.stderr) == (2, b"error: standard input holds bytes that are not UTF-8\n")


def turns(server: ScriptedServer) -> list[list[str]]:
    return [[message.text for message in call.request.spec.chat.messages] for call in server.calls]


def test_conversation_keeps_its_history_until_it_is_reset(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = lambda request: answer(f"answer {len(request.spec.chat.messages)}")
    terminal = Terminal("m", "--system", "S", "--server", server.address)
    try:
        terminal.wait_for("> ")
        for line, expected in (
            ("one", "answer 2"),
            ("two", "answer 4"),
            ("/reset", "(forgotten)"),
            ("three", "answer 2"),
        ):
            terminal.type(line + "\n")
            terminal.wait_for(expected)
            terminal.wait_for("> ")
        terminal.type("/system\n")
        terminal.wait_for("(a new conversation)")
        terminal.type("four\n")
        terminal.wait_for("answer 1")
        terminal.type("/quit\n")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()
    assert turns(server) == [["S", "one"], ["S", "one", "answer 2", "two"], ["S", "three"], ["four"]]


def test_adapters_change_within_a_conversation(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = lambda request: answer(f"answer {len(request.spec.chat.messages)}")
    terminal = Terminal("m", "--adapter", "a", "--server", server.address)
    try:
        terminal.wait_for("> ")
        for line, expected in (
            ("one", "answer 1"),
            ("/adapter a:2 b", "(with a:2, b)"),
            ("/adapter a:x", "has no scale"),
            ("two", "answer 3"),
            ("/adapter", "(with the model itself)"),
            ("three", "answer 5"),
        ):
            terminal.type(line + "\n")
            terminal.wait_for(expected)
            terminal.wait_for("> ")
        terminal.type("/quit\n")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()
    used = [[(use.adapter, use.scale) for use in call.request.adapters] for call in server.calls]
    assert used == [[("a", 0.0)], [("a", 2.0), ("b", 0.0)], []]


def test_ctrl_c_ends_an_answer_and_not_the_conversation(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = [delta("On and"), Hold()]
    terminal = Terminal("m", "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("On and")
        terminal.interrupt()
        terminal.wait_for("(ended)")
        assert server.call("StreamGenerate").is_ended_by_client.wait(5)
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


def test_failed_turn_leaves_the_conversation_as_it_was(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = [Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED")]
    terminal = Terminal("m", "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("UNAVAILABLE WORKER_DIED")
        server.scripts["StreamGenerate"] = answer("fine")
        terminal.type("two\n")
        terminal.wait_for("fine")
    finally:
        terminal.close()
    assert turns(server) == [["one"], ["two"]]


@pytest.mark.parametrize(
    ("options", "word"), [(["--json"], "--json"), (["-n", "2"], "--sequences"), (["--logprobs", "1"], "--logprobs")]
)
def test_conversation_takes_no_options_of_a_single_answer(
    server: ScriptedServer, options: list[str], word: str
) -> None:
    terminal = Terminal("m", *options, "--server", server.address)
    try:
        terminal.wait_for(f"error: {word} needs a PROMPT")
        assert terminal.wait_for_end() == 2
    finally:
        terminal.close()
