"""Adapters through a whole server: what was loaded is there in every worker of its model, until it is unloaded."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import common_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc
from pomona.v1 import generation_pb2 as g

from tests.support.served import Served, served
from tests.support.tiny_adapters import write_random
from tests.support.tiny_embedders import write_embedder
from tests.support.tiny_models import write_llama
from tests.support.waiting import wait_until
from tests.support.worker_client import refusal_of

TIMEOUT_S = 30.0
ACTIVE, AVAILABLE = model_pb2.ADAPTER_STATE_ACTIVE, model_pb2.ADAPTER_STATE_AVAILABLE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_random(folder / "a", seed=1)
    write_random(folder / "org" / "b", seed=2, layout="peft")
    write_random(folder / "first", seed=3)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    tiny, embedder = write_llama(folder / "tiny"), write_embedder(folder / "embedder")
    settings = folder / "pomona.toml"
    settings.write_text(
        f"""
        [[models]]
        name = "tiny"
        checkpoint = "{tiny}"
        aliases = ["small"]
        adapters_folder = "{store}"
        adapters = [{{adapter = "first", pinned = true}}]
        [[models]]
        name = "embedder"
        checkpoint = "{embedder}"
        task = "embed"
        adapters_folder = "{store}"
        [supervision]
        back_off_first_s = 0.05
        """
    )
    with served("--settings", str(settings)) as running:
        yield running


class Client:
    """Calls a server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.adapters: Any = model_pb2_grpc.AdapterServiceStub(channel)
        self.models: Any = model_pb2_grpc.ModelServiceStub(channel)
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)

    def answer(self, *adapters: str) -> tuple[list[int], list[str]]:
        spec = g.GenerationSpec(prompt="hello", output=g.OutputOptions(token_ids=True))
        spec.sampling.temperature = 0
        spec.stopping.max_tokens = 12
        spec.stopping.ignore_eos = True
        uses = [common_pb2.AdapterUse(adapter=name) for name in adapters]
        response = self.generation.Generate(
            g.GenerateRequest(model="tiny", adapters=uses, spec=spec), timeout=TIMEOUT_S
        )
        used = [f"{one.adapter}@{one.revision}" for one in response.resolved_model.adapters]
        return [token.id for token in response.sequences[0].tokens], used

    def load(self, adapter: str, **fields: Any) -> model_pb2.LoadAdapterResponse:
        given: dict[str, Any] = {"model": "small", "adapter": adapter, **fields}
        return self.adapters.LoadAdapter(model_pb2.LoadAdapterRequest(**given), timeout=TIMEOUT_S)

    def unload(self, adapter: str) -> model_pb2.UnloadAdapterResponse:
        request = model_pb2.UnloadAdapterRequest(model="tiny", adapter=adapter)
        return self.adapters.UnloadAdapter(request, timeout=TIMEOUT_S)

    def listed(self, model: str = "tiny") -> dict[str, model_pb2.Adapter]:
        found = self.adapters.ListAdapters(model_pb2.ListAdaptersRequest(model=model), timeout=TIMEOUT_S)
        return {one.adapter: one for one in found.adapters}

    def shown(self, model: str = "tiny") -> model_pb2.Model:
        return self.models.GetModel(model_pb2.GetModelRequest(model=model), timeout=TIMEOUT_S).model

    def unload_model(self) -> None:
        self.models.UnloadModel(model_pb2.UnloadModelRequest(model="tiny"), timeout=TIMEOUT_S)

    def kill_worker(self) -> None:
        (worker,) = self.shown().workers
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: worker.pid not in [one.pid for one in self.shown().workers], 10.0)


def reason_of(call: Callable[[], object]) -> str:
    """Return why a call is refused."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    error: Any = raised.value
    return refusal_of(error).reason


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with grpc.insecure_channel(server.address) as opened:
        made = Client(opened)
        made.unload_model()
        yield made


def test_adapters_outlive_every_worker_until_they_are_unloaded(client: Client) -> None:
    there = client.listed()
    assert {name: one.state for name, one in there.items()} == dict.fromkeys(("a", "first", "org/b"), AVAILABLE)
    assert [name for name, one in there.items() if one.pinned] == ["first"]
    resting = client.shown()
    assert (resting.state, resting.generation.adapters) == (model_pb2.MODEL_STATE_UNLOADED, True)
    assert resting.limits.max_adapters == 8

    loaded = client.load("mine", source="a", pinned=True).adapter
    lists = ((), ("mine",), ("first",), ("mine", "first"))
    before = [client.answer(*names) for names in lists]
    assert len({tuple(tokens) for tokens, _ in before}) == 4
    assert before[1][1] == [f"mine@{loaded.revision}"]

    client.kill_worker()
    assert [client.answer(*names) for names in lists] == before
    again = client.listed()["mine"]
    assert (again.state, again.pinned, again.revision) == (ACTIVE, True, loaded.revision)

    options = model_pb2.LoadOptions(max_batch_rows=3)
    client.models.LoadModel(model_pb2.LoadModelRequest(model="tiny", options=options), timeout=TIMEOUT_S)
    assert client.answer("mine", "first") == before[3]

    client.unload_model()
    wanted = client.listed()["mine"]
    assert (wanted.state, wanted.pinned, wanted.revision) == (AVAILABLE, True, loaded.revision)
    assert client.answer("mine") == before[1]
    wait_until(lambda: client.shown().memory.adapters_bytes == 2 * loaded.memory_bytes)

    assert client.unload("mine").freed_bytes == loaded.memory_bytes
    client.kill_worker()
    assert reason_of(lambda: client.answer("mine")) == "ADAPTER_NOT_FOUND"
    assert client.answer() == before[0]


def test_other_content_is_never_served_for_what_was_loaded(client: Client, store: Path) -> None:
    write_random(store / "changing", seed=5)
    loaded = client.load("changing").adapter
    write_random(store / "changing", seed=6)
    client.kill_worker()
    assert reason_of(lambda: client.answer("changing")) == "ADAPTER_INCOMPATIBLE"
    assert client.listed()["changing"].failure.reason == "ADAPTER_INCOMPATIBLE"
    other = client.load("changing").adapter
    assert other.revision != loaded.revision
    client.kill_worker()
    assert client.answer("changing")[1] == [f"changing@{other.revision}"]
    client.unload("changing")


def test_what_is_unloaded_while_no_worker_runs_is_wanted_no_more(client: Client) -> None:
    client.load("org/b")
    client.unload_model()
    assert client.unload("org/b").adapter.state == AVAILABLE
    assert reason_of(lambda: client.unload("org/b")) == "ADAPTER_NOT_FOUND"
    assert client.shown().state == model_pb2.MODEL_STATE_UNLOADED
    client.answer()
    states = {name: one.state for name, one in client.listed().items()}
    assert (states["org/b"], states["first"]) == (AVAILABLE, ACTIVE)


def test_refusals_load_no_model(client: Client) -> None:
    wrong = model_pb2.LoadAdapterRequest(model="embedder", adapter="a")
    for call, reason in (
        (lambda: client.adapters.LoadAdapter(wrong, timeout=TIMEOUT_S), "TASK_NOT_SUPPORTED"),
        (lambda: client.listed("embedder"), "TASK_NOT_SUPPORTED"),
        (lambda: client.load("nowhere"), "ADAPTER_NOT_FOUND"),
        (lambda: client.load("../a"), "INVALID_FIELD"),
        (lambda: client.load("x", source="/etc"), "INVALID_FIELD"),
    ):
        assert reason_of(call) == reason
    assert {client.shown(name).state for name in ("tiny", "embedder")} == {model_pb2.MODEL_STATE_UNLOADED}


def test_the_command_lists_loads_uses_and_unloads(client: Client, server: Served) -> None:
    def pomona(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "gateway", *arguments, "--server", server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50.0, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "is loaded: 14 layers of rank 4" in pomona("adapters", "load", "tiny", "org/b", "--pin")
    listed = json.loads(pomona("adapters", "list", "tiny", "--json"))["adapters"]
    assert {one["adapter"]: one["state"] for one in listed}["org/b"] == "ADAPTER_STATE_ACTIVE"
    ask = ("chat", "tiny", "hello", "--max-tokens", "8", "--temperature", "0")
    assert pomona(*ask, "--adapter", "org/b") != pomona(*ask)
    assert pomona(*ask, "--adapter", "org/b:0") == pomona(*ask)
    assert pomona("adapters", "unload", "tiny", "org/b").startswith("org/b is unloaded, ")
