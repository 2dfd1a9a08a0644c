"""Tools of `chat`: read from a file, refused by their place, and printed where the model calls them."""

import json
from pathlib import Path
from typing import Any

import pytest
from pomona.v1 import generation_pb2 as g

from tests.support.scripted_server import ScriptedServer, Step, answer, delta

from .conftest import Run
from .terminal import Terminal

WEATHER = {
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CLOCK = {"name": "get_time"}


def write(path: Path, *tools: Any) -> str:
    file = path / "tools.json"
    file.write_text(json.dumps(tools))
    return str(file)


def call(text: str, name: str = "", index: int = 0, sequence: int = 0) -> g.StreamGenerateResponse:
    """Return a part of a tool call; the first has the name."""
    told = g.ToolCallDelta(sequence_index=sequence, call_index=index, arguments_json_delta=text)
    if name:
        told.name, told.id = name, f"call_{index}"
    return g.StreamGenerateResponse(tool_call=told)


def calling(*events: g.StreamGenerateResponse) -> list[Step]:
    """Return an answer that ends by calling tools."""
    started, finished, completed = answer(reason=g.FINISH_REASON_TOOL_CALL)
    return [started, *events, finished, completed]


def test_tools_are_read_plain_and_as_openai_writes_them(server: ScriptedServer, run: Run, tmp_path: Path) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?", "--tools", write(tmp_path, {"type": "function", "function": WEATHER}, CLOCK))
    schema = '{"type":"object","properties":{"city":{"type":"string"}}}'
    chat = server.call("StreamGenerate").request.spec.chat
    assert list(chat.tools) == [
        g.ToolSpec(name="get_weather", description="Of a city.", parameters_json_schema=schema),
        g.ToolSpec(name="get_time"),
    ]
    assert not chat.HasField("tool_choice")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", g.ToolChoice(mode=g.ToolChoice.MODE_AUTO)),
        ("none", g.ToolChoice(mode=g.ToolChoice.MODE_NONE)),
        ("required", g.ToolChoice(mode=g.ToolChoice.MODE_REQUIRED)),
        ("get_time", g.ToolChoice(mode=g.ToolChoice.MODE_NAMED, name="get_time")),
    ],
)
def test_choice_is_a_mode_or_a_tool(
    server: ScriptedServer, run: Run, tmp_path: Path, choice: str, wanted: g.ToolChoice
) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?", "--tools", write(tmp_path, WEATHER, CLOCK), "--tool-choice", choice)
    assert server.call("StreamGenerate").request.spec.chat.tool_choice == wanted


def test_choice_of_a_tool_that_is_not_there_lists_those_that_are(run: Run, tmp_path: Path) -> None:
    result = run("chat", "m", "Why?", "--tools", write(tmp_path, WEATHER, CLOCK), "--tool-choice", "got_time")
    problem = "--tool-choice: no tool is named 'got_time'; there are: get_weather, get_time"
    assert (result.exit_code, result.stderr) == (2, f"error: {problem}\n")


def test_choice_needs_tools(run: Run) -> None:
    result = run("chat", "m", "Why?", "--tool-choice", "auto")
    assert (result.exit_code, result.stderr) == (2, "error: --tool-choice needs --tools FILE\n")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"name": "a"}, "is not a JSON array"),
        ([], "holds no tool"),
        (["a"], "[0] is not a JSON object"),
        ([WEATHER, {"description": "x"}], "[1] has no name"),
        ([{"name": ""}], "[0] has no name"),
        ([{"name": 3}], "[0].name is not a string of Unicode characters"),
        ([{"name": "\ud800"}], "[0].name is not a string of Unicode characters"),
        ([{"name": "a", "description": None}], "[0].description is not a string of Unicode characters"),
        ([{"name": "a", "parameters": "{}"}], "[0].parameters is not a JSON object"),
        ([{"name": "a", "schema": {}}], "[0].schema is not known; there are: name, description, parameters"),
        ([{"type": "function", "function": {}}], "[0].function has no name"),
        ([{"type": "function", "name": "a"}], '[0].type has no "function" beside it'),
        ([{"type": "code", "function": CLOCK}], '[0].type is not "function"'),
        ([{"function": CLOCK, "strict": True}], "[0].strict is not known; there are: type, function"),
        (
            [WEATHER, {"type": "function", "function": WEATHER}],
            "[1].function.name: 'get_weather' is the name of [0] too",
        ),
    ],
)
def test_file_that_holds_no_tools_is_refused_by_its_place(
    server: ScriptedServer, run: Run, tmp_path: Path, document: Any, problem: str
) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(document))
    result = run("chat", "m", "Why?", "--tools", str(path))
    assert (result.exit_code, result.stderr, server.calls) == (2, f"error: --tools: {path}: {problem}\n", [])


def test_file_that_is_not_json_is_refused_by_line_and_column(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text('[\n  {"name": get_time}\n]')
    result = run("chat", "m", "Why?", "--tools", str(path))
    assert result.stderr == f"error: --tools: {path}, line 2, column 12: not JSON: expecting value\n"


def test_calls_are_lines_of_the_answer(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = calling(
        delta("Let me look."),
        call('{"city":', "get_weather"),
        call('"Rome"}'),
        call("{}", "get_time", index=1),
    )
    result = run("chat", "m", "Why?")
    assert result.stdout == 'Let me look.\n[tool call] get_weather {"city":"Rome"}\n[tool call] get_time {}\n'
    assert result.stderr.endswith("; calls tools]\n")


def test_text_after_a_call_begins_a_line(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [*calling(call("{}", "get_time"), delta("Done."))]
    assert run("chat", "m", "Why?").stdout == "[tool call] get_time {}\nDone.\n"


def test_program_reads_calls_among_the_events(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = calling(call('{"city":"Rome"}', "get_weather"))
    events = [json.loads(line) for line in run("chat", "m", "Why?", "--json").stdout.splitlines()]
    assert [event["toolCall"] for event in events if "toolCall" in event] == [
        {
            "sequenceIndex": 0,
            "callIndex": 0,
            "id": "call_0",
            "name": "get_weather",
            "argumentsJsonDelta": '{"city":"Rome"}',
        }
    ]


def test_calls_of_a_later_answer_wait_for_their_turn(server: ScriptedServer, run: Run) -> None:
    started, finished, completed = answer()
    second = g.StreamGenerateResponse(sequence_finished=g.SequenceFinished(sequence_index=1))
    server.scripts["StreamGenerate"] = [
        started,
        call("{}", "get_time", sequence=1),
        second,
        delta("Noon."),
        finished,
        completed,
    ]
    assert run("chat", "m", "Why?", "-n", "2").stdout == "--- 1 of 2\nNoon.\n--- 2 of 2\n[tool call] get_time {}\n"


def test_person_gives_the_results_of_tools_in_a_conversation(server: ScriptedServer, tmp_path: Path) -> None:
    replies = iter([calling(delta("Hm."), call('{"city":"Rome"}', "get_weather")), answer("Sunny.")])
    server.scripts["StreamGenerate"] = lambda request: next(replies)
    terminal = Terminal("m", "--tools", write(tmp_path, WEATHER), "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("Weather in Rome?\n")
        terminal.wait_for("get_weather gives> ")
        terminal.type("25 degrees\n")
        terminal.wait_for("Sunny.")
        terminal.wait_for("> ")
    finally:
        terminal.close()
    question, said, result = server.calls[-1].request.spec.chat.messages
    assert (question.text, said.text) == ("Weather in Rome?", "Hm.")
    assert list(said.tool_calls) == [g.ToolCall(id="call_0", name="get_weather", arguments_json='{"city":"Rome"}')]
    assert (result.role, result.text, result.tool_call_id) == (g.ROLE_TOOL, "25 degrees", "call_0")


def test_model_that_must_call_may_answer_behind_the_result(server: ScriptedServer, tmp_path: Path) -> None:
    replies = iter([calling(call("{}", "get_time")), answer("Noon."), answer("Again.")])
    server.scripts["StreamGenerate"] = lambda request: next(replies)
    choice = ("--tools", write(tmp_path, CLOCK), "--tool-choice", "get_time")
    terminal = Terminal("m", *choice, "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("get_time gives> ")
        terminal.type("12:00\n")
        terminal.wait_for("Noon.")
        terminal.wait_for("> ")
        terminal.type("two\n")
        terminal.wait_for("Again.")
    finally:
        terminal.close()
    named = g.ToolChoice(mode=g.ToolChoice.MODE_NAMED, name="get_time")
    choices = [call.request.spec.chat.tool_choice for call in server.calls]
    assert choices == [named, g.ToolChoice(), named]


def test_question_whose_call_gets_no_result_is_forgotten(server: ScriptedServer, tmp_path: Path) -> None:
    server.scripts["StreamGenerate"] = calling(call("{}", "get_weather"))
    terminal = Terminal("m", "--tools", write(tmp_path, WEATHER), "--server", server.address)
    try:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("get_weather gives> ")
        terminal.interrupt()
        terminal.wait_for("(the question is forgotten)")
        server.scripts["StreamGenerate"] = answer("fine")
        terminal.type("two\n")
        terminal.wait_for("fine")
    finally:
        terminal.close()
    assert [message.text for message in server.calls[-1].request.spec.chat.messages] == ["two"]
