"""The retry policy that docs recommend, as gRPC's own client library follows it."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pomona
import pytest
from pomona.connection import recommended_service_config
from pomona.v1 import model_pb2

from tests.support.scripted_server import Fail, ScriptedServer, Step, answer, delta

ROOT = Path(__file__).parents[2]
PUSHBACK = "grpc-retry-pushback-ms"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def failing(times: int, failure: Fail, *then: Step) -> Callable[[Any], list[Step]]:
    """Fail so often, then do better."""
    left = [failure] * times
    return lambda request: [left.pop()] if left else list(then)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[pomona.Client]:
    with pomona.connect(server.address, timeout_s=20) as connected:
        yield connected


def test_one_policy_stands_in_docs_and_client() -> None:
    told = json.loads((ROOT / "docs" / "service_config.json").read_text())
    assert json.loads(recommended_service_config()) == told
    (shown,) = re.findall(r"^```json\n(.*?)^```$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE | re.DOTALL)
    assert json.loads(shown) == told


def test_client_and_server_are_of_one_version() -> None:
    projects = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "protos")]
    assert projects[0]["version"] == projects[1]["version"]
    versions = [{re.split(r"[>\[;]", need)[0]: need for need in project["dependencies"]} for project in projects]
    assert versions[1] == {name: versions[0][name] for name in ("grpcio", "protobuf")}


@pytest.mark.parametrize("trailers", [(), ((PUSHBACK, "10"),)])
def test_unavailable_is_tried_again(
    server: ScriptedServer, client: pomona.Client, trailers: tuple[tuple[str, str], ...]
) -> None:
    failure = Fail(UNAVAILABLE, "Later.", "WORKER_RESTARTING", trailers=trailers)
    server.scripts["StreamGenerate"] = failing(2, failure, *answer("Hi"))
    assert client.generate("smol", "x").result().text == "Hi"
    assert [call.metadata.get("grpc-previous-rpc-attempts") for call in server.calls] == [None, "1", "2"]


def test_unary_calls_are_tried_again(server: ScriptedServer, client: pomona.Client) -> None:
    told = model_pb2.GetModelResponse(model=model_pb2.Model(model="smol"))
    server.scripts["GetModel"] = failing(1, Fail(UNAVAILABLE, "Later."), told)
    assert client.model("smol").model == "smol"


async def test_asyncio_tries_again_too(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = failing(2, Fail(UNAVAILABLE, "Later."), *answer("Hi"))
    async with pomona.connect_async(server.address) as client:
        assert (await client.generate("smol", "x").result()).text == "Hi"
    assert len(server.calls) == 3


def test_four_attempts_are_the_most(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamGenerate"] = [Fail(UNAVAILABLE, "Later.", trailers=((PUSHBACK, "1"),))]
    with pytest.raises(pomona.PomonaError, match="UNAVAILABLE"):
        client.generate("smol", "x").result()
    assert len(server.calls) == 4


@pytest.mark.parametrize(
    "failure",
    [
        Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "Full.", "QUEUE_FULL", trailers=((PUSHBACK, "1"),)),
        Fail(grpc.StatusCode.INTERNAL, "Oh.", "INTERNAL_ERROR"),
        Fail(UNAVAILABLE, "Do not.", "MODEL_LOADING", trailers=((PUSHBACK, "-1"),)),
    ],
    ids=["overload", "bug", "pushback"],
)
def test_the_rest_is_not_tried_again(server: ScriptedServer, client: pomona.Client, failure: Fail) -> None:
    server.scripts["StreamGenerate"] = failing(1, failure, *answer("Hi"))
    with pytest.raises(pomona.PomonaError) as caught:
        client.generate("smol", "x").result()
    assert caught.value.reason == failure.reason
    assert len(server.calls) == 1


def test_a_stream_that_has_begun_is_not_tried_again(server: ScriptedServer, client: pomona.Client) -> None:
    server.scripts["StreamGenerate"] = [delta("a"), Fail(UNAVAILABLE, "Gone.", "WORKER_DIED")]
    with pytest.raises(pomona.PomonaError, match="WORKER_DIED"):
        client.generate("smol", "x").result()
    assert len(server.calls) == 1


def test_a_policy_of_ones_own_takes_its_place(server: ScriptedServer) -> None:
    server.scripts["StreamGenerate"] = failing(1, Fail(UNAVAILABLE, "Later."), *answer("Hi"))
    with (
        pomona.connect(server.address, service_config="{}") as client,
        pytest.raises(pomona.PomonaError, match="UNAVAILABLE"),
    ):
        client.generate("smol", "x").result()
    assert len(server.calls) == 1
