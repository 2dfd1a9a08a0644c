"""Reasoning of `chat`: asked for, and printed apart from the answer."""

import json
import subprocess
import sys

import grpc
import pytest
from pomona.v1 import generation_pb2 as g

from tests.support.scripted_server import Fail, ScriptedServer, Step, answer, delta

from .conftest import Run
from .terminal import Terminal


def thought(text: str, sequence: int = 0) -> g.StreamGenerateResponse:
    return g.StreamGenerateResponse(
        delta=g.TokenDelta(sequence_index=sequence, text=text, channel=g.CHANNEL_REASONING, token_count=1)
    )


def thinking(*events: g.StreamGenerateResponse) -> list[Step]:
    started, finished, completed = answer()
    assert isinstance(completed, g.StreamGenerateResponse)
    completed.completed.usage.reasoning_tokens = 2
    return [started, *events, finished, completed]


def test_standard_output_has_the_answer_alone(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = thinking(
        thought("Blue light"), thought(" scatters."), delta("It "), delta("is.")
    )
    result = run("chat", "m", "Why?")
    assert result.stdout == "It is.\n"
    assert result.stderr.startswith("--- reasoning\nBlue light scatters.\n--- answer\n[7 prompt tokens")
    assert "2 of them reasoning" in result.stderr


def test_reasoning_may_be_hidden(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = thinking(thought("Hm."), delta("It is."))
    result = run("chat", "m", "Why?", "--hide-reasoning")
    assert (result.stdout, "Hm." in result.stderr, "---" in result.stderr) == ("It is.\n", False, False)


def test_program_reads_reasoning_by_its_channel_unless_it_is_hidden(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = thinking(thought("Hm."), delta("It is."))
    for options, channels in (
        ((), ["CHANNEL_REASONING", "CHANNEL_CONTENT"]),
        (("--hide-reasoning",), ["CHANNEL_CONTENT"]),
    ):
        lines = run("chat", "m", "Why?", "--json", *options).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        assert [event["delta"]["channel"] for event in events if "delta" in event] == channels
        assert "completed" in events[-1]


def test_reasoning_that_breaks_off_ends_its_line(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [thought("Hm"), Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED")]
    result = run("chat", "m", "Why?")
    assert (result.stdout, result.stderr) == ("", "--- reasoning\nHm\nerror: UNAVAILABLE WORKER_DIED: it died\n")


def test_reasoning_of_later_answers_comes_in_their_turn(server: ScriptedServer, run: Run) -> None:
    started, finished, completed = answer()
    second = g.StreamGenerateResponse(delta=g.TokenDelta(sequence_index=1, text="B", channel=g.CHANNEL_CONTENT))
    ended = g.StreamGenerateResponse(sequence_finished=g.SequenceFinished(sequence_index=1))
    server.scripts["StreamGenerate"] = [
        started,
        thought("two", 1),
        thought("one"),
        second,
        ended,
        delta("A"),
        finished,
        completed,
    ]
    result = run("chat", "m", "Why?", "-n", "2")
    assert result.stdout == "--- 1 of 2\nA\n--- 2 of 2\nB\n"
    assert result.stderr.startswith("--- reasoning\none\n--- answer\n--- reasoning\ntwo\n--- answer\n[")


@pytest.mark.parametrize(("option", "wanted"), [("--thinking", True), ("--no-thinking", False)])
def test_thinking_is_switched_where_it_is_asked_for(
    server: ScriptedServer, run: Run, option: str, wanted: bool
) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?", option)
    chat = server.call("StreamGenerate").request.spec.chat
    assert (chat.HasField("enable_thinking"), chat.enable_thinking) == (True, wanted)


def test_thinking_is_left_to_the_model_where_it_is_not(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?")
    assert not server.call("StreamGenerate").request.spec.chat.HasField("enable_thinking")


def test_terminal_shows_reasoning_dimmed_and_apart(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = thinking(thought("Hm, \x1b[31m"), delta("It is."))
    terminal = Terminal("m", "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("Why?\n")
        terminal.wait_for("\x1b[2mHm, \N{REPLACEMENT CHARACTER}[31m\x1b[0m\r\n\r\nIt is.")
    finally:
        terminal.close()


def test_history_keeps_the_answer_and_apart_from_it_the_reasoning(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = thinking(thought("Hm."), delta("It is."))
    terminal = Terminal("m", "--server", server.address)
    try:
        for question in ("one\n", "two\n"):
            terminal.wait_for("> ")
            terminal.type(question)
            terminal.wait_for("It is.")
    finally:
        terminal.close()
    said = server.calls[-1].request.spec.chat.messages[1]
    assert (said.text, said.reasoning) == ("It is.", "Hm.")


def test_answer_can_be_piped_while_reasoning_is_watched(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = thinking(thought("Hm."), delta("It is."))
    command = [sys.executable, "-P", "-m", "gateway", "chat", "m", "Why?", "--server", server.address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert (done.stdout, "Hm." in done.stderr) == ("It is.\n", True)
