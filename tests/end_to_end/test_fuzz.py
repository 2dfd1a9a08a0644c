"""Bodies from the descriptors, right, nearly right and mutated, into every RPC: listed statuses only, and no death.

The gateway is a process of its own, and so are its workers: one that follows a script, which shows what the gateway
does, and one with a tiny model, which shows what a worker does. Together some ten thousand bodies.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pomona.v1 import model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc

from tests.support import fuzzed, wire_bodies
from tests.support.kill_rounds import MODEL, GatewayProcess, gateway_process
from tests.support.scripted import write_script
from tests.support.scripted_server import Fail, ScriptedServer
from tests.support.tiny_embedders import write_embedder
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import write_mlx

LIMIT_S = 30.0
ANSWER = {"": [{"read": 1}, {"tell": 0}]}
TARGETS = fuzzed.targets()
DATA_PLANE = [
    name for name in TARGETS if name.split(".")[0] in {"GenerationService", "EmbeddingService", "TranscriptionService"}
]
# These start processes, or wait for something that does not come.
SLOW = [
    name
    for name, target in TARGETS.items()
    if target.name in {"LoadModel", "UnloadModel", "EstimateModel", "RefreshCatalogue", "LoadAdapter", "StreamLogs"}
    or target.name.startswith("Watch")
]
ADAPTERS = [f"AdapterService.{name}" for name in ("ListAdapters", "LoadAdapter", "UnloadAdapter")]
LAST = "AdminService.DrainServer"
CONTROL_PLANE = [name for name in TARGETS if name not in {*DATA_PLANE, *SLOW, LAST}]
EXAMPLES = {**dict.fromkeys(DATA_PLANE, 700), **dict.fromkeys(CONTROL_PLANE, 180), **dict.fromkeys(SLOW, 15)}
REAL_EXAMPLES = 60
SLOW_TO_MAKE = (HealthCheck.too_slow, HealthCheck.data_too_large)
TROUBLE = ("unexpectedly", "Traceback", "supervision broke off", "impossible change")
# What is there before a body for a worker: a request that would be served, whose fields the body changes.
SERVED: dict[str, Any] = {
    "GenerationService": {"model": MODEL, "spec": {"prompt": "ab", "stopping": {"max_tokens": 2}}},
    "GenerationService.CountTokens": {"model": MODEL, "prompt": "ab"},
    "EmbeddingService.Embed": {"model": "embedder", "inputs": [{"text": "ab"}]},
    "EmbeddingService.Rerank": {"model": "embedder", "query": "a", "documents": ["b"]},
    "TranscriptionService": {"model": "speech", "audio": b"", "config": {"languages": ["en"]}},
    "TranscriptionService.StreamTranscribe": {"model": "speech", "config": {}},
    "AdapterService": {"model": MODEL},
}
ENVELOPE = ("model", "request_id", "adapters", "priority")


def fuzz(channel: grpc.Channel, name: str, count: int, base: bytes = b"") -> Counter[str]:
    """Send so many bodies to one method and count their ends; `base` stands before each, whose envelope is kept."""
    kind = TARGETS[name].kind
    made = st.lists(wire_bodies.bodies(kind, ENVELOPE if base else ()), min_size=1, max_size=3)
    ends: Counter[str] = Counter()

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=SLOW_TO_MAKE)
    @given(made)
    def sends(bodies: list[bytes]) -> None:
        end = fuzzed.send(channel, TARGETS[name], [base + bodies[0], *bodies[1:]])
        ends[end.outcome] += 1
        assert end.wrong == ""

    sends()
    return ends


def base_of(name: str) -> bytes:
    """Return a request for a method that a worker would serve."""
    target = TARGETS[name]
    kind: Any = message_factory.GetMessageClass(target.kind)
    body: bytes = kind(**(SERVED.get(name) or SERVED[name.partition(".")[0]])).SerializeToString()
    return body


def check_life(gateway: GatewayProcess, channel: grpc.Channel) -> None:
    """See that nobody died of it: the gateway answers, and no worker is one that was started again after a crash."""
    assert gateway.process.poll() is None
    models = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(), timeout=LIMIT_S).models
    assert [(one.model, worker.last_exit) for one in models for worker in one.workers if worker.restart_count] == []
    assert [line for line in gateway.log if any(word in line for word in TROUBLE)] == []


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, grpc.Channel]]:
    script = write_script(tmp_path_factory.mktemp("script"), events="", methods=ANSWER)
    with ExitStack() as held:
        gateway = held.enter_context(gateway_process(script))
        yield gateway, held.enter_context(gateway.channel())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, grpc.Channel]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "speech").mkdir()
    models = {
        MODEL: write_llama(folder / "tiny"),
        "embedder": write_embedder(folder / "embedder"),
        "speech": write_mlx(folder / "speech"),
    }
    with ExitStack() as held:
        gateway = held.enter_context(gateway_process(models, is_fake=False))
        yield gateway, held.enter_context(gateway.channel())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_gateway_refuses_what_it_cannot_use_and_lives(
    scripted: tuple[GatewayProcess, grpc.Channel], name: str
) -> None:
    gateway, channel = scripted
    fuzz(channel, name, EXAMPLES[name])
    check_life(gateway, channel)


@pytest.mark.parametrize("name", [*DATA_PLANE, *ADAPTERS])
def test_a_worker_refuses_what_it_cannot_use_and_lives(real: tuple[GatewayProcess, grpc.Channel], name: str) -> None:
    gateway, channel = real
    ends = fuzz(channel, name, REAL_EXAMPLES, base_of(name))
    check_life(gateway, channel)
    assert len(ends) > 1, "they end alike, so that hardly any gets anywhere"


def test_a_server_that_is_told_to_end_in_any_way_says_so_in_its_statuses(tmp_path: Path) -> None:
    script = write_script(tmp_path, events="", methods=ANSWER)
    with gateway_process(script) as gateway, gateway.channel() as channel:
        fuzz(channel, LAST, 30)
        server_pb2_grpc.AdminServiceStub(channel).ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S)
        assert gateway.process.poll() is None


def test_every_method_of_every_service_is_sent_something() -> None:
    assert {*EXAMPLES, LAST} == TARGETS.keys()
    assert sum(EXAMPLES.values()) > 9_000


@pytest.mark.parametrize(
    ("code", "reason"),
    [(grpc.StatusCode.UNKNOWN, ""), (grpc.StatusCode.NOT_FOUND, "NO_SUCH_REASON"), (grpc.StatusCode.OK, "")],
)
def test_a_status_that_nobody_lists_is_found(code: grpc.StatusCode, reason: str) -> None:
    script = [Fail(code, "as it is told", reason)] if code is not grpc.StatusCode.OK else []
    with ScriptedServer({"ListModels": script}) as server, grpc.insecure_channel(server.address) as channel:
        assert fuzzed.send(channel, TARGETS["ModelService.ListModels"], [b""]).wrong
