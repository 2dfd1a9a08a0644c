"""`adapters list|load|unload`, and `chat --adapter`."""

import json

import grpc
import pytest
from pomona.v1 import common_pb2
from pomona.v1 import model_pb2 as m

from gateway.cli import adapter_options
from tests.support.scripted_server import Fail, ScriptedServer, answer
from worker.adapters import wanted

from .conftest import Run

FORMAL = m.Adapter(
    adapter="formal",
    model="smollm2",
    revision="0a1b",
    rank=8,
    scale=2.0,
    state=m.ADAPTER_STATE_ACTIVE,
    pinned=True,
    memory_bytes=1_500_000,
    request_count=7,
    mounted_layers=30,
    skipped_tensors=2,
)


def test_adapters_are_listed_page_by_page(server: ScriptedServer, run: Run) -> None:
    lost = m.Adapter(adapter="lost", state=m.ADAPTER_STATE_FAILED)
    lost.failure.CopyFrom(common_pb2.Failure(reason="ADAPTER_NOT_FOUND", message="There is none."))
    pages = {"": m.ListAdaptersResponse(adapters=[FORMAL], next_page_token="formal")}
    last = m.ListAdaptersResponse(adapters=[lost])
    server.scripts["ListAdapters"] = lambda request: [pages.get(request.page_token, last)]
    result = run("adapters", "list", "smollm2")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[1] == ["formal", "active", "0a1b", "8", "2", "1.5", "MB", "7", "yes"]
    assert rows[2] == ["lost", "failed"]
    assert "lost: ADAPTER_NOT_FOUND There is none." in result.stderr
    listed = json.loads(run("adapters", "list", "smollm2", "--json").stdout)["adapters"]
    assert [one["adapter"] for one in listed] == ["formal", "lost"]


def test_a_model_without_adapters_is_told_of_their_folder(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListAdapters"] = [m.ListAdaptersResponse()]
    assert "adapters_folder" in run("adapters", "list", "smollm2").stderr
    assert json.loads(run("adapters", "list", "smollm2", "--json").stdout) == {"adapters": []}


def test_an_adapter_is_loaded_as_it_was_asked_for(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadAdapter"] = [m.LoadAdapterResponse(adapter=FORMAL)]
    options = ("--source", "org/formal", "--pin", "--replace", "--sha256", "ab")
    result = run("adapters", "load", "smollm2", "formal", *options)
    assert result.stdout == "formal@0a1b is loaded: 30 layers of rank 8, 1.5 MB, 2 tensors left out\n"
    assert server.call("LoadAdapter").request == m.LoadAdapterRequest(
        model="smollm2", adapter="formal", source="org/formal", pinned=True, replace=True, expected_sha256="ab"
    )
    again = m.LoadAdapterResponse(adapter=FORMAL, already_loaded=True)
    server.scripts["LoadAdapter"] = [again]
    assert "was loaded already" in run("adapters", "load", "smollm2", "formal").stdout
    assert json.loads(run("adapters", "load", "smollm2", "formal", "--json").stdout)["alreadyLoaded"] is True


def test_an_adapter_is_unloaded(server: ScriptedServer, run: Run) -> None:
    server.scripts["UnloadAdapter"] = [m.UnloadAdapterResponse(adapter=FORMAL, freed_bytes=1_500_000)]
    assert run("adapters", "unload", "smollm2", "formal").stdout == "formal is unloaded, 1.5 MB freed\n"
    assert json.loads(run("adapters", "unload", "smollm2", "formal", "--json").stdout)["freedBytes"] == "1500000"


def test_a_refusal_is_told_in_one_line_and_in_json(server: ScriptedServer, run: Run) -> None:
    refusal = Fail(grpc.StatusCode.FAILED_PRECONDITION, "2 requests still use the adapter", "ADAPTER_IN_USE")
    server.scripts["UnloadAdapter"] = [refusal]
    result = run("adapters", "unload", "smollm2", "formal", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["reason"] == "ADAPTER_IN_USE"
    assert result.stderr.startswith("error: FAILED_PRECONDITION ADAPTER_IN_USE:")


def test_adapters_of_an_answer_keep_their_order_and_scales(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("Good day.")
    assert run("chat", "smollm2", "hi", "--adapter", "org/b:-0.5", "--adapter", "a").exit_code == 0
    assert list(server.call("StreamGenerate").request.adapters) == [
        common_pb2.AdapterUse(adapter="org/b", scale=-0.5),
        common_pb2.AdapterUse(adapter="a"),
    ]


@pytest.mark.parametrize("text", [":1", "a:", "a:x", "a:1001", "a:nan", "a:1:2"])
def test_an_adapter_that_cannot_be_is_wrong_usage(server: ScriptedServer, run: Run, text: str) -> None:
    result = run("chat", "smollm2", "hi", "--adapter", text)
    assert (result.exit_code, server.calls) == (2, [])
    assert f"--adapter: {text!r}" in result.stderr


def test_no_more_adapters_than_a_request_may_have(server: ScriptedServer, run: Run) -> None:
    result = run("chat", "smollm2", "hi", *(["--adapter", "a"] * 9))
    assert (result.exit_code, server.calls) == (2, [])
    assert (adapter_options.MAX_ADAPTERS, adapter_options.MAX_SCALE) == (wanted.MAX_ADAPTERS, wanted.MAX_SCALE)


def test_a_server_that_finds_an_adapter_wrong_is_told_by_its_option(server: ScriptedServer, run: Run) -> None:
    problem = "A field is invalid: adapters[0].scale is not right"
    server.scripts["StreamGenerate"] = [
        Fail(grpc.StatusCode.INVALID_ARGUMENT, problem, "INVALID_FIELD", {"field": "adapters[0].scale"})
    ]
    assert "--adapter is not right" in run("chat", "smollm2", "hi", "--adapter", "a").stderr
