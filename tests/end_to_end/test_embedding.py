"""Vectors and rankings through a whole server: gateway, workers and checkpoints."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from pomona.v1 import embedding_pb2 as e
from pomona.v1 import embedding_pb2_grpc, generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc

from tests.models.embedding.table import DOCUMENTS, QUERY, TEXTS
from tests.models.embedding.test_transformers import STORED
from tests.support.served import Served, served
from tests.support.tiny_embedders import DIMENSIONS, write_embedder, write_reranker
from tests.support.worker_client import refusal_of

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    embedder, reranker = write_embedder(folder / "embedder"), write_reranker(folder / "reranker")
    silent = write_embedder(folder / "silent", prompts=None)
    models = [
        {"name": "embedder", "checkpoint": str(embedder), "aliases": ["vectors"]},
        {"name": "reranker", "checkpoint": str(reranker), "task": "rerank"},
        {"name": "silent", "checkpoint": str(silent), "task": "embed"},
        {"name": "writer", "checkpoint": str(silent)},
    ]
    settings = folder / "pomona.toml"
    written = [
        "\n".join(["[[models]]", *(f"{key} = {json.dumps(value)}" for key, value in each.items())]) for each in models
    ]
    settings.write_text("\n".join(written))
    with served("--settings", str(settings)) as running:
        yield running


@pytest.fixture
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> embedding_pb2_grpc.EmbeddingServiceStub:
    return embedding_pb2_grpc.EmbeddingServiceStub(channel)


def inputs(*texts: str) -> list[e.EmbedInput]:
    return [e.EmbedInput(text=text) for text in texts]


def model_of(channel: grpc.Channel, name: str) -> model_pb2.Model:
    request = model_pb2.GetModelRequest(model=name)
    return model_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=TIMEOUT_S).model


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("embedder", model_pb2.Model.TASK_EMBED),
        ("reranker", model_pb2.Model.TASK_RERANK),
        ("silent", model_pb2.Model.TASK_EMBED),
        ("writer", model_pb2.Model.TASK_GENERATE),
    ],
)
def test_model_tells_its_task_before_it_is_loaded(channel: grpc.Channel, name: str, task: int) -> None:
    assert list(model_of(channel, name).tasks) == [task]


def test_vectors_come_through_the_gateway_under_every_name(
    channel: grpc.Channel, stub: embedding_pb2_grpc.EmbeddingServiceStub
) -> None:
    answers = [
        stub.Embed(e.EmbedRequest(model=name, inputs=inputs(*TEXTS)), timeout=TIMEOUT_S)
        for name in ("embedder", "vectors", "silent")
    ]
    for answer in answers:
        vectors = np.array([np.frombuffer(each.values, dtype="<f4") for each in answer.embeddings])
        assert np.abs(vectors - STORED["last"][: len(TEXTS)]).max() < 5e-5
    assert [answer.resolved_model.model for answer in answers] == ["embedder", "embedder", "silent"]
    model = model_of(channel, "embedder")
    assert (model.embedding.dimensions, model.state) == (DIMENSIONS, model_pb2.MODEL_STATE_ACTIVE)
    assert model.limits.max_embed_inputs > 1000
    assert model.revision == answers[0].resolved_model.revision


def test_a_batch_of_64_equals_64_single_calls(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    texts = [f"{'text ' * (index % 9)}{index}" for index in range(64)]
    together = stub.Embed(e.EmbedRequest(model="embedder", inputs=inputs(*texts)), timeout=TIMEOUT_S)
    futures = [
        stub.Embed.future(e.EmbedRequest(model="embedder", inputs=inputs(text)), timeout=TIMEOUT_S) for text in texts
    ]
    assert [each.values for each in together.embeddings] == [each.result().embeddings[0].values for each in futures]


def test_documents_are_ranked_through_the_gateway(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    answer = stub.Rerank(e.RerankRequest(model="reranker", query=QUERY, documents=DOCUMENTS), timeout=TIMEOUT_S)
    scores = {each.document_index: each.score for each in answer.rankings}
    assert [scores[index] for index in range(3)] == pytest.approx(STORED["scores"].tolist(), abs=1e-5)


def test_every_model_refuses_what_the_others_do(
    channel: grpc.Channel, stub: embedding_pb2_grpc.EmbeddingServiceStub
) -> None:
    spec = generation_pb2.GenerationSpec(prompt="x")
    writer = generation_pb2_grpc.GenerationServiceStub(channel)
    calls = {
        "embed": lambda: writer.Generate(
            generation_pb2.GenerateRequest(model="embedder", spec=spec), timeout=TIMEOUT_S
        ),
        "rerank": lambda: stub.Embed(e.EmbedRequest(model="reranker", inputs=inputs("x")), timeout=TIMEOUT_S),
        "generate": lambda: stub.Embed(e.EmbedRequest(model="writer", inputs=inputs("x")), timeout=TIMEOUT_S),
    }
    for tasks, call in calls.items():
        with pytest.raises(grpc.RpcError) as caught:
            call()
        refusal = refusal_of(caught.value)  # pyright: ignore[reportArgumentType]
        assert (refusal.reason, refusal.metadata["tasks"]) == ("TASK_NOT_SUPPORTED", tasks)


def test_program_gets_vectors_as_lines_of_json(server: Served) -> None:
    command = [sys.executable, "-P", "-m", "gateway", "embed", "embedder", "--json", "--server", server.address]
    done = subprocess.run([*command, *TEXTS[:2]], capture_output=True, text=True, check=True, timeout=50)
    vectors = [json.loads(line)["vector"] for line in done.stdout.splitlines()]
    assert np.abs(np.array(vectors) - STORED["last"][:2]).max() < 5e-5
    shown = [sys.executable, "-P", "-m", "gateway", "show", "embedder", "--server", server.address]
    assert "dimensions 64" in subprocess.run(shown, capture_output=True, text=True, check=True, timeout=50).stdout


def test_a_wrong_task_of_the_settings_is_told_by_its_name(tmp_path: Path) -> None:
    settings = tmp_path / "pomona.toml"
    settings.write_text('[[models]]\nname = "a"\ncheckpoint = "/a"\ntask = "sing"\n')
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--settings", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 2
    assert "models.a.task" in done.stderr
